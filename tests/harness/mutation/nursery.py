"""A warm process in a copy of the project, which forks a child for each run of tests.

It has imported what is installed and nothing of the project, so a child sees the files as they are now. It reads a task
as a line of JSON and answers with one. Whatever a child leaves running is ended before the answer.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

SUBREAPER = 36
WARM = ("numpy", "torch", "msgspec", "nats", "hypothesis", "hypothesis.strategies", "sympy", "pytest_asyncio", "pytest")
WARM += ("pytest_timeout", "safetensors.torch", "fsspec", "zstandard", "aiohttp", "pyarrow.parquet", "duckdb")
WARM += ("transformers.models.auto.tokenization_auto", "opentelemetry.sdk.trace", "sympy.parsing.sympy_parser")
WARM += ("megatron.core.parallel_state", "megatron.core.distributed", "megatron.core.models.gpt")
LIGHT = "not soak and not real"


def main() -> int:
    """Until the end of stdin."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for name in WARM:
        importlib.import_module(name)
    signal.signal(signal.SIGTERM, _end)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
        answers.flush()
    return 0


def _run(task: dict[str, Any]) -> dict[str, Any]:
    """code: pytest's, or -9 where the limit ran out. reached, tests: what the child's recorder wrote, if asked for."""
    report = Path(os.environ["TMPDIR"]) / "said.json"
    report.unlink(missing_ok=True)
    begun = time.monotonic()
    child = os.fork()
    if not child:
        _child(task, report)
    ended = 0
    while not ended and time.monotonic() < begun + task["limit_s"]:
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.01)
    code = os.waitstatus_to_exitcode(status) if ended else -9
    _end_children()
    shutil.rmtree(Path(os.environ["TMPDIR"]) / "p", ignore_errors=True)
    answer = json.loads(report.read_text()) if report.exists() else {}
    return {"code": code, "took_s": time.monotonic() - begun, **answer}


def _child(task: dict[str, Any], report: Path) -> None:
    code = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        out = os.open(f"{os.environ['TMPDIR']}/out", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for number, source in ((0, nothing), (1, out), (2, out)):
            os.dup2(source, number)
        sys.dont_write_bytecode = not task.get("record")
        import pytest

        from tests.harness.mutation.recorder import Recorder

        recorder = Recorder(bool(task.get("record")))
        arguments = [] if task.get("record") or task.get("all") else ["-x"]
        arguments += ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", LIGHT, f"--timeout={task['test_s']}"]
        arguments += [f"--basetemp={os.environ['TMPDIR']}/p", "--no-header", "--tb=no", *task["tests"]]
        code = int(pytest.main(arguments, plugins=[recorder]))
        report.write_text(json.dumps(recorder.report()))
    finally:
        os._exit(code)


def _end(*_: object) -> None:
    _end_children()
    os._exit(0)


def _end_children() -> None:
    """All of them, and those that they leave to this process."""
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in map(int, children):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main())
