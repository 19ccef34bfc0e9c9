"""Waiting for what comes in its own time; the limit is for a hang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from storage.log import Consumer, Delivery, EventLog

WITHIN_S = 60.0


async def until(holds: Callable[[], object]) -> None:
    """Looked at every few milliseconds. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def taken(taker: Consumer, count: int) -> list[Delivery]:
    """So many of a queue, as one call may bring fewer. Raises TimeoutError."""
    found: list[Delivery] = []
    async with asyncio.timeout(WITHIN_S):
        while len(found) < count:
            found += await taker.take(count - len(found), WITHIN_S)
    return found


async def done_up_to(log: EventLog, queue: str, position: int = 1) -> int:
    """How far a queue is done, once that is `position` at least: nobody waits for a log to hear it. Raises
    TimeoutError.
    """
    async with asyncio.timeout(WITHIN_S):
        while (done := await log.done_up_to(queue)) < position:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return done
