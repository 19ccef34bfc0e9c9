"""`RankPair`: processes that run a module's `main` as ranks, by default two, which meet over gloo.

`python -m tests.megatron.two_processes` is such a process: it reads jobs from its input, one a line.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

DEADLINE_S = 300.0
END_S = 10.0
DONE = b"done\n"


class RankPair:
    """Processes that run one module after another: their imports take seconds. They start with the first module, and
    again after one that failed. logs: the folder with the errors of each. ranks: number of processes."""

    def __init__(self, logs: Path, ranks: int = 2) -> None:
        self._logs = [logs / f"rank{rank}.log" for rank in range(ranks)]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, module: str, model: Path, out: Path) -> Path:
        """Run `main` of the module with the words `model out rank` for each rank; return `out`. All must end well."""
        if not self._processes:
            self._processes = [_start(log) for log in self._logs]
        for rank, process in enumerate(self._processes):
            assert process.stdin is not None
            process.stdin.write(json.dumps([module, str(model), str(out), str(rank)]).encode() + b"\n")
            process.stdin.flush()
        end = time.monotonic() + DEADLINE_S
        answers = [_answer(process, end) for process in self._processes]
        if answers != [DONE] * len(self._logs):
            self._end()
            raise AssertionError("\n".join(log.read_text()[-3000:] for log in self._logs))
        return out

    def _end(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []


def run_two(module: str, model: Path, out: Path) -> None:
    """Run a module on a pair of its own, whose errors are in `out`."""
    run_ranks(2, module, model, out)


def run_ranks(ranks: int, module: str, model: Path, out: Path) -> Path:
    """Run a module on processes of its own, whose errors are in `out`, which is made if it is missing. Return `out`."""
    out.mkdir(exist_ok=True)
    with RankPair(out, ranks) as processes:
        return processes.run(module, model, out)


def _start(log: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "tests.megatron.two_processes"]
    with log.open("wb") as errors:
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
        )


def _answer(process: subprocess.Popen[bytes], end: float) -> bytes:
    """Return the answer to a job; empty at the deadline, or if the process has ended."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], max(0.0, end - time.monotonic()))
    return process.stdout.readline() if ready else b""


def main() -> None:
    """Run jobs until the input is closed. An error ends the process."""
    with os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        os.dup2(2, 1)  # what a module prints is no answer
        for line in sys.stdin:
            module, *words = json.loads(line)
            sys.argv = [module, *words]
            importlib.import_module(module).main()
            faulthandler.cancel_dump_traceback_later()
            answers.write(DONE)


if __name__ == "__main__":
    main()
