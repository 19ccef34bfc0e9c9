"""Test that the next engine removes what an engine left on the machine, once nobody holds it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from serve_apps.engines import engine_folder
from serve_apps.engines.engine_folder import UNLOCKED_S, EngineFolder, clear_abandoned, is_abandoned

HOLD = """
from serve_apps.engines.engine_folder import EngineFolder
folder = EngineFolder()
print(folder.path, flush=True)
input()
"""


@pytest.mark.parametrize(
    ("held", "age_s", "expected"),
    [(True, 1e6, False), (False, 1.0, True), (None, 1.0, False), (None, UNLOCKED_S + 1, True)],
    ids=["held", "released", "being made", "never locked"],
)
def test_a_folder_that_nobody_holds_is_abandoned(held: bool | None, age_s: float, expected: bool) -> None:
    assert is_abandoned(held, age_s) is expected


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine's temporary folder and shared memory of its own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(engine_folder, "SHARED_MEMORY", tmp_path)
    return tmp_path


def test_what_a_killed_engine_left_is_cleared(machine: Path) -> None:
    command = [sys.executable, "-c", HOLD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().strip())
        shared = machine / f"sglang_loads_{left.name}_0123abcd.shm"
        for path in (left / "log", shared):
            path.write_text("said")
        ours = EngineFolder()
        assert left.is_dir()
        assert clear_abandoned() == [], "both are held"
        other.kill()
        other.wait()
    assert clear_abandoned() == [left]
    assert list(machine.iterdir()) == [ours.path]
    ours.remove()
    assert not list(machine.iterdir())
