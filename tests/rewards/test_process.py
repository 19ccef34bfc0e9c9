"""The pool's end of a grader process, with a socket in place of the process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slime_events.core.child.frame_reader import FrameReader
from slime_events.core.child.frames import frame
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.choice import Choice
from slime_events.plugins.rewards.outcome import Graded
from slime_events.plugins.rewards.process import WorkerProcess
from tests.clock import Clock
from tests.rewards.test_pool import ended

UNITS = [msgspec.Raw(messages.encode(messages.Job([], Choice()))) for _ in range(2)]
DONE = [messages.Done(number, [Graded(value=float(number))]) for number in range(2)]


async def test_an_answer_that_is_there_counts_however_late_it_is_looked_for(clock: Clock) -> None:
    """Accept an answer that has come although the limit has passed too, as after a pause of the machine."""
    ours, theirs = socket.socketpair()
    child: Any = None
    reader, writer = await asyncio.open_connection(sock=ours)
    process = WorkerProcess(child, FrameReader(reader), writer, -1, {})
    with theirs:
        answers = process.grade(UNITS, limit=60.0)
        for done in DONE:
            answer, answered = asyncio.create_task(anext(answers)), frame(messages.encode(done))
            theirs.sendall(answered[:5])
            await asyncio.sleep(0.01)
            theirs.sendall(answered[5:])
            clock.forward(61.0)
            assert await answer == done
        await answers.aclose()

        unanswered = asyncio.create_task(anext(process.grade(UNITS, limit=60.0)))
        await asyncio.sleep(0.01)
        assert not unanswered.done()
        clock.forward(61.0)
        with pytest.raises(TimeoutError):
            await unanswered


async def test_who_is_to_blame_is_read_in_the_shared_page() -> None:
    ours, theirs = socket.socketpair()
    child: Any = None
    page = os.memfd_create("mark")
    reader, writer = await asyncio.open_connection(sock=ours)
    process = WorkerProcess(child, FrameReader(reader), writer, page, {})
    try:
        for number, job in ((0, 0), (3, 3), (messages.IDLE, None)):
            os.pwrite(page, messages.MARK.pack(number), 0)
            assert process.current() == job
    finally:
        os.close(page)
        theirs.close()
        process._writer.close()


STUCK = """
import pathlib, time
def reward_func(args, sample, **kwargs):
    pathlib.Path("began").touch()
    time.sleep(600)
"""
OWNER = """
import asyncio, pathlib, sys
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards.messages import Job
from slime_events.plugins.rewards.pool import WorkerPool
from slime_events.plugins.sample import Sample

async def main():
    pool = WorkerPool(RewardSettings(custom_rm_path="stuck.py", rm_timeout=600.0), user_dir=pathlib.Path(sys.argv[1]))
    await pool.start()
    print(pool.pids[0], flush=True)
    await pool.grade([Job([Sample()], pool.own)])

asyncio.run(main())
"""


async def test_a_stuck_grader_dies_with_who_started_it(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    grader = int(await asyncio.wait_for(owner.stdout.readline(), 60))
    try:
        async with asyncio.timeout(60):
            while not (tmp_path / "began").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        owner.kill()
        await owner.wait()
        assert await ended(grader, within_s=20.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(grader, signal.SIGKILL)
