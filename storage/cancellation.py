"""End tasks and futures that nothing awaits any more.

In Python 3.11 `asyncio.wait_for` loses a cancellation that arrives together with the awaited result, and nats-py awaits
every answer of a server with it. And asyncio logs an error that is never retrieved, at the time of garbage collection.
"""

import asyncio
from typing import Any

AGAIN_S = 5.0
"""Seconds for a task to clean up before it is cancelled again: its cancellation may have been lost."""


async def end_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks until all have ended, and discard their results.

    If the caller is cancelled meanwhile, its CancelledError is raised after all tasks have ended.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending, timeout=AGAIN_S)
        except asyncio.CancelledError as error:
            cancelled = error
    await asyncio.gather(*tasks, return_exceptions=True)
    if cancelled is not None:
        raise cancelled


def fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """End a future with an error, and mark the error as retrieved, so that asyncio does not log it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def check_cancelled() -> None:
    """Raise CancelledError if a cancellation of the current task was lost. Call it before a long wait."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
