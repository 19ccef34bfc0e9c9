"""Two processes of a module that meet over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEADLINE = 300.0


def run_two(module: str, model: Path, out: Path) -> None:
    """Run `python -m module model out rank` for ranks 0 and 1; both have to end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", module, str(model), str(out)]
    logs = [out / f"rank{rank}.log" for rank in range(2)]
    processes = []
    for rank, log in enumerate(logs):
        with log.open("w") as stderr:
            processes.append(subprocess.Popen([*command, str(rank)], env=environment, stderr=stderr))
    try:
        for process in processes:
            process.wait(timeout=DEADLINE)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(log.read_text()[-3000:] for log in logs)
