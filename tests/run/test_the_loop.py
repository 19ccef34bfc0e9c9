"""`examples/the_loop.py` as a user runs it: a real run started, followed and asked by the public API."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = pytest.mark.real
DEADLINE_S = 600.0


def test_the_whole_loop(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "the_loop.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert sum("is committed as weight version" in line for line in lines) == 3
    assert lines.count("run loop is finished") == 2, "from its folder and from its archive alone"
    assert "rollout.completed" in done.stdout
