"""One program: its input, environment and output, and the end of all of its processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from serve_apps.http.agent_command.outcome import TIMED_OUT
from serve_apps.http.agent_command.program import LOG_BYTES, Ended, run_program

LONG_S = 60.0


async def ran(tmp_path: Path, code: str, *, task: bytes = b"{}", timeout_s: float = LONG_S) -> Ended:
    folder = tmp_path / "folder"
    folder.mkdir(exist_ok=True)
    variables = {"PATH": os.environ["PATH"], "SLIME_EVENTS_SESSION": "s"}
    words = (sys.executable, "-c", code)
    return await run_program(
        words, folder=folder, log=tmp_path / "log", variables=variables, task=task, timeout_s=timeout_s
    )


async def test_it_has_the_task_and_its_environment(tmp_path: Path) -> None:
    code = (
        "import json, os, sys\n"
        "print('starting', file=sys.stderr)\n"
        "print(json.dumps([json.load(sys.stdin), os.getcwd(), sorted(os.environ)]))\n"
        "print()\n"
    )
    ended = await ran(tmp_path, code, task=json.dumps({"prompt": "1+1"}).encode())
    assert ended.exit_code == 0
    task, folder, variables = json.loads(ended.last_line)
    assert (task, folder) == ({"prompt": "1+1"}, str(tmp_path / "folder"))
    assert {"PATH", "SLIME_EVENTS_SESSION"} <= set(variables)
    assert "HOME" not in variables
    assert "starting" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9), ("import sys; sys.stdin.close()", 0)],
)
async def test_how_it_ended(tmp_path: Path, code: str, exit_code: int) -> None:
    assert await ran(tmp_path, code, task=b"x" * 4_000_000) == Ended(exit_code, "")


SLEEPS = "import time; time.sleep(99)"
CHILDREN = (
    "import subprocess, sys, time\n"
    "for new in (False, True):\n"
    f"    subprocess.Popen([sys.executable, '-c', {SLEEPS!r}], start_new_session=new)\n"
)


async def test_one_that_takes_too_long_is_killed_with_all_its_children(tmp_path: Path) -> None:
    before = set(children())
    ended = await ran(tmp_path, CHILDREN + "print('{\"reward\": 1}', flush=True)\ntime.sleep(99)", timeout_s=1.0)
    assert ended.exit_code == TIMED_OUT
    assert gone(before)


async def test_one_that_ends_leaves_nothing_of_its_group(tmp_path: Path) -> None:
    before = set(children())
    assert (await ran(tmp_path, CHILDREN.replace("(False, True)", "(False,)"))).exit_code == 0
    assert gone(before)


async def test_one_that_is_cancelled_is_killed(tmp_path: Path) -> None:
    before = set(children())
    task = asyncio.create_task(ran(tmp_path, CHILDREN + "time.sleep(99)"))
    await asyncio.sleep(1.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(before)


def children() -> list[int]:
    """Return the children of this process, and orphans that sleep as theirs do."""
    orphans = [process.pid for process in psutil.process_iter(["cmdline"]) if SLEEPS in (process.info["cmdline"] or ())]
    return [*orphans, *(child.pid for child in psutil.Process().children(recursive=True))]


def gone(before: set[int]) -> bool:
    until = time.monotonic() + LONG_S
    while left := set(children()) - before:
        if time.monotonic() > until:
            raise AssertionError(left)
        time.sleep(0.05)
    return True


async def test_of_much_output_the_beginning_is_kept_and_the_last_line_read(tmp_path: Path) -> None:
    code = f"print('x' * {2 * LOG_BYTES})\nprint('last')"
    assert (await ran(tmp_path, code)).last_line == "last"
    assert (tmp_path / "log").stat().st_size == LOG_BYTES


async def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        await run_program(["nowhere"], folder=tmp_path, log=tmp_path / "log", variables={}, task=b"", timeout_s=1)
