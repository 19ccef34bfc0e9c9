"""The two sets of versions, for machines without and with GPUs: each fits together, by metadata and by the index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SETS = {"cpu": "train", "gpu": "gpu"}
"""Set of versions to the extra of this package that it is for."""
PYTHONS = ("3.11.9", "3.12.9", "3.13.2")
GLIBC = "x86_64-manylinux_2_34"
"""The oldest system that SGLang has wheels for."""
OF_CUDA = re.compile(r"nvidia-|cuda-|triton$")
"""What torch of the package index brings along on a machine without a GPU too; `make` takes what fits the machine."""


def pins(name: str) -> dict[str, str]:
    """The exact versions of requirements/`name`.txt, with those that it includes."""
    versions: dict[str, str] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("-c "):
            versions |= pins(line.removeprefix("-c ").removesuffix(".txt"))
        elif line and not line.startswith("#"):
            package, _, version = line.partition("==")
            assert canonicalize_name(package) not in versions, f"{package} is pinned twice"
            versions[canonicalize_name(package)] = version
    return versions


def unmet(requirements: list[Requirement], pinned: dict[str, str]) -> list[str]:
    """Return the requirements that `pinned` does not meet on Linux, without extras."""
    here = [
        requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    missing = [str(requirement) for requirement in here if canonicalize_name(requirement.name) not in pinned]
    return missing + [
        f"{requirement} is pinned to {version}"
        for requirement in here
        if (version := pinned.get(canonicalize_name(requirement.name))) and not requirement.specifier.contains(version)
    ]


def own(extra: str) -> list[Requirement]:
    """Return the requirements of this package with an extra, and those of its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, development = project["project"]["optional-dependencies"], project["dependency-groups"]["dev"]
    texts = [*project["project"]["dependencies"], *(text for text in development if isinstance(text, str))]
    for name in {extra, "train", "graders", "otlp"}:
        texts += [text for text in extras[name] if not text.startswith("slime-events[")]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", SETS)
def test_a_set_meets_what_this_package_asks_for(name: str) -> None:
    assert unmet(own(SETS[name]), pins(name)) == []


def test_the_gpu_set_meets_what_sglang_asks_for_and_the_cpu_set_does_not() -> None:
    requirements = [Requirement(text) for text in metadata.requires("sglang") or ()]
    assert unmet(requirements, pins("gpu")) == []
    differing = {text.partition("=")[0] for text in unmet(requirements, pins("cpu"))}
    assert {"torch", "sglang-kernel"} <= differing


def test_both_sets_have_the_same_engine_and_trainer() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extra, group = project["project"]["optional-dependencies"]["gpu"], project["dependency-groups"]["engines"]
    exact = {text for text in extra if "==" in text}
    assert {text.partition("=")[0] for text in exact} == {"sglang", "megatron-core"}
    assert exact <= set(group)


def resolve(name: str, python: str, extra: str) -> tuple[dict[str, str], str]:
    """Return the versions that the index resolves an extra to under a set of versions, and any error text."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--no-annotate", "--no-header", "pyproject.toml"]
    options = ["--extra", extra, "--group", "dev", "-c", f"requirements/{name}.txt"]
    platform = ["--python-version", python, "--python-platform", GLIBC]
    done = subprocess.run([*command, *options, *platform], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line.partition("==") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return {canonicalize_name(package): version for package, _, version in lines}, done.stderr


@pytest.mark.soak
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", SETS)
def test_the_index_has_a_set_and_it_is_whole(name: str, python: str) -> None:
    resolved, why = resolve(name, python, SETS[name])
    assert resolved, why
    pinned = pins(name)
    others = {package: version for package, version in resolved.items() if pinned.get(package) != version}
    if name == "cpu":
        others = {package: version for package, version in others.items() if not OF_CUDA.match(package)}
    assert others == {}


@pytest.mark.soak
def test_sglang_with_its_own_dependencies_does_not_fit_the_cpu_set() -> None:
    resolved, why = resolve("cpu", PYTHONS[0], "gpu")
    assert not resolved
    assert "torch==2.13.0" in why
