"""The command itself, over a run with a scripted engine: some attacks, two more steps, an audit, and exit code 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_live_run_refuses_long_heads_and_goes_on(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "tests.harness.attacks",
        "--scripted",
        "--only",
        "heads",
        "--name",
        "60 KB of letters",
    ]
    done = subprocess.run(
        [*words, "--folder", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout + done.stderr
    assert lines[-1].startswith("9 of 9 attacks refused or bounded, 0 other faults")
    assert not list(tmp_path.glob("at-*")), "its folder is removed"
