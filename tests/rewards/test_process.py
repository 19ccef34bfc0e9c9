"""The pool's end of a grader process, with a socket in place of the process."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from slime_events.rewards import wire
from slime_events.rewards.outcome import Graded
from slime_events.rewards.process import GraderProcess
from tests.clock import Clock

UNITS = [msgspec.Raw(wire.encode(wire.Unit([]))) for _ in range(2)]
DONE = [wire.Done(number, [Graded(value=float(number))]) for number in range(2)]


async def test_an_answer_that_is_there_counts_however_late_it_is_looked_for(clock: Clock) -> None:
    """As after a pause of the machine: the answer has come, and the limit has passed too."""
    ours, theirs = socket.socketpair()
    child: Any = None
    process = GraderProcess(child, *await asyncio.open_connection(sock=ours), mark=-1)
    with theirs:
        answers = process.grade(UNITS, limit=60.0)
        for done in DONE:
            answer, frame = asyncio.create_task(anext(answers)), wire.frame(wire.encode(done))
            theirs.sendall(frame[:5])
            await asyncio.sleep(0.01)
            theirs.sendall(frame[5:])
            clock.forward(61.0)
            assert await answer == done
        await answers.aclose()

        unanswered = asyncio.create_task(anext(process.grade(UNITS, limit=60.0)))
        await asyncio.sleep(0.01)
        assert not unanswered.done()
        clock.forward(61.0)
        with pytest.raises(TimeoutError):
            await unanswered
