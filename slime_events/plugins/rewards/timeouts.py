"""`limited` and `marked`: an async grader's time limit, and its number in the shared page while it runs."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from slime_events.plugins.rewards import messages


class OverLimit(Exception):
    """Our time limit, not a TimeoutError of the grader's own."""


async def limited(awaitable: Awaitable[Any], limit: float) -> Any:
    """What it gives, within so many seconds. Raises OverLimit."""
    try:
        async with asyncio.timeout(limit) as timer:
            return await awaitable
    except TimeoutError:
        if timer.expired():
            raise OverLimit from None
        raise


@types.coroutine
def marked(coroutine: Coroutine[Any, Any, Any], number: int, mark: Callable[[int], None]) -> Generator[Any, Any, Any]:
    """Drive `coroutine`, with its unit's number in the shared page while it has the processor."""
    resume: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        mark(number)
        try:
            awaited = resume(value)
        except StopIteration as stop:
            return stop.value
        finally:
            mark(messages.IDLE)
        try:
            value = yield awaited
            resume = coroutine.send
        except BaseException as thrown:  # a cancellation goes into the coroutine, not past it
            value, resume = thrown, coroutine.throw
