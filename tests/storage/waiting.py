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
    """Take `count` deliveries of a queue in as many calls as needed. Raises TimeoutError."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(WITHIN_S):
        while len(deliveries) < count:
            deliveries += await taker.take(count - len(deliveries), WITHIN_S)
    return deliveries


async def done_up_to(log: EventLog, queue: str, position: int = 1) -> int:
    """Return how far a queue is done, once that is `position` at least. Raises TimeoutError."""
    async with asyncio.timeout(WITHIN_S):
        while (done := await log.done_up_to(queue)) < position:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return done
