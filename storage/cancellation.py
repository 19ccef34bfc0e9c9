"""Cancellation in Python 3.11, whose `asyncio.wait_for` loses one that comes together with the result it waits for.

nats-py waits that way for whatever it asks a server.
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


def check_cancelled() -> None:
    """Raise the CancelledError that the current task should have had: for where a long wait begins."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
