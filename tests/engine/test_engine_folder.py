"""What an engine leaves on the machine is removed by the next one, once nobody holds it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from serve_apps.engine import engine_folder
from serve_apps.engine.engine_folder import UNLOCKED_S, EngineFolder, Found, abandoned, clear_abandoned

HOLD = """
from serve_apps.engine.engine_folder import EngineFolder
folder = EngineFolder()
print(folder.path, flush=True)
input()
"""


def test_what_nobody_holds_is_abandoned() -> None:
    found = [
        Found(Path("held"), held=True, age_s=1e6),
        Found(Path("let go"), held=False, age_s=1.0),
        Found(Path("being made"), held=None, age_s=1.0),
        Found(Path("never locked"), held=None, age_s=UNLOCKED_S + 1),
    ]
    assert abandoned(found) == [Path("let go"), Path("never locked")]


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
