"""Test the search for the compiler of kernels on a machine with GPUs, and the message if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_events.app.cli import checks
from slime_events.app.cli.checks import Outcome
from slime_events.core.machine import cuda_toolkit
from slime_events.core.machine.cuda_toolkit import WHOLE, Toolkit, find_toolkit


def put(folder: Path, *files: str) -> Path:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def nothing_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_toolkit, "USUAL", tmp_path / "usual")


def test_a_whole_toolkit_that_engines_find_needs_no_variable(tmp_path: Path) -> None:
    home, usual = put(tmp_path / "home", *WHOLE), put(tmp_path / "usual", *WHOLE)
    for environment, expected in (
        ({"CUDA_HOME": str(home), "PATH": ""}, home),
        ({"CUDA_PATH": str(home), "PATH": ""}, home),
        ({"PATH": str(home / "bin")}, home),
        ({"PATH": ""}, usual),
    ):
        toolkit = find_toolkit(environment, wheels=[])
        assert (toolkit.home, toolkit.environment) == (expected, {})


def test_pips_is_taken_where_there_is_no_other_and_it_is_whole(tmp_path: Path) -> None:
    part, whole = put(tmp_path / "cu12", WHOLE[0]), put(tmp_path / "cu13", *WHOLE)
    toolkit = find_toolkit({"PATH": ""}, wheels=[part, whole])
    assert toolkit.environment == {"CUDA_HOME": str(whole)}
    assert find_toolkit({"PATH": ""}, wheels=[part]).home is None
    answer = find_toolkit({"PATH": "", "CUDA_HOME": str(tmp_path / "gone")}, wheels=[whole])
    assert (answer.home, answer.environment) == (None, {}), (
        "what the user has set stays, and the message calls it wrong"
    )


def test_a_compiler_is_the_one_that_is_named_or_any(tmp_path: Path) -> None:
    put(tmp_path / "bin", "c++", "own-cc")
    path = {"PATH": str(tmp_path / "bin")}
    assert find_toolkit(path, wheels=[]).compiler == str(tmp_path / "bin" / "c++")
    assert find_toolkit({**path, "CXX": "own-cc -O2"}, wheels=[]).compiler == str(tmp_path / "bin" / "own-cc")
    assert find_toolkit({"PATH": ""}, wheels=[]).compiler is None


@pytest.mark.parametrize(
    ("toolkit", "missing"),
    [
        (Toolkit(None), 2),
        (Toolkit(Path("/cuda")), 1),
        (Toolkit(None, compiler="/bin/g++"), 1),
        (Toolkit(Path("/cuda"), compiler="/bin/g++"), 0),
    ],
)
def test_doctor_says_what_is_missing_and_what_to_do(
    toolkit: Toolkit, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "find_toolkit", lambda: toolkit)
    check = checks.check_toolkit()
    assert check.outcome is (Outcome.FAIL if missing else Outcome.OK)
    assert bool(check.mend) is bool(missing)
    assert len(toolkit.missing()) == missing
