"""Real runs to look at, made by the commands of the docs: a demo, a run of agents that search, and a killed demo."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.docs.pages import ROOT
from tests.run.tiny import MARK, marked

DEMO, AGENTS, KILLED = "demo", "search-agent", "killed"
DEMO_STEPS, AGENT_STEPS = 4, 1
MOST_S = 900.0
CLI = (sys.executable, "-m", "slime_events.app.cli.main")
BEGUN = re.compile(r"^step +2/", re.MULTILINE)
"""What a run prints when there is something to look at."""


def make_all(folder: Path) -> Path:
    """Make the runs, and return the folder that has them."""
    runs = folder / "runs"
    _finish(*CLI, "demo", "--steps", str(DEMO_STEPS), "--runs-dir", str(runs))
    train = ROOT / "examples" / "search_agent" / "train.sh"
    _finish("sh", str(train), str(folder), "--num-rollout", str(AGENT_STEPS), "--console-port", "0")
    _kill(folder, *CLI, "demo", "--steps", "50", "--run", KILLED, "--runs-dir", str(runs))
    return runs


def _environment(mark: str = "") -> dict[str, str]:
    """With this Python and its commands first in the path, as in an active environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, MARK: mark}


def _finish(*command: str) -> None:
    subprocess.run(command, env=_environment(), check=True, timeout=MOST_S)


def _kill(folder: Path, *command: str) -> None:
    """Start a run, and kill -9 all its processes after its second step."""
    mark, printed = uuid.uuid4().hex, folder / "killed.txt"
    with printed.open("w") as output, subprocess.Popen(command, env=_environment(mark), stderr=output) as launcher:
        try:
            end = time.monotonic() + MOST_S
            while not BEGUN.search(printed.read_text()):
                assert launcher.poll() is None, "the run ended before it could be killed"
                assert time.monotonic() < end, printed.read_text()
                time.sleep(0.1)
        finally:
            _kill_all(launcher.pid, mark)


def _kill_all(launcher: int, mark: str) -> None:
    """Kill a launcher's tree, and what carries its mark elsewhere."""
    tree: Sequence[psutil.Process] = psutil.Process(launcher).children(recursive=True)
    os.kill(launcher, signal.SIGKILL)
    for process in (*tree, *marked(mark)):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
