"""The end of tasks and futures that nobody waits for any more.

In Python 3.11 `asyncio.wait_for` loses a cancellation that comes together with the result it waits for; nats-py waits
that way for whatever it asks a server. And an error that nobody asks for is written by asyncio when it is collected, at
any time and amid anything.
"""

import asyncio
from typing import Any

AGAIN_S = 5.0
"""Seconds that a task may take to clean up, before it is cancelled once more: its cancellation may have been lost."""


async def end_all(*tasks: asyncio.Future[Any]) -> None:
    """Cancel until all have ended. What they ended with is of no use any more.

    One that is cancelled itself meanwhile ends them first: it may be the clean-up of a task that is ended like this.
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
    """End a future with an error, for whoever waits for it. Where nobody does any more it is no news."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def check_cancelled() -> None:
    """Raise the CancelledError that the current task should have had: for where a long wait begins."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
