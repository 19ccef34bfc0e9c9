"""`collective`: one call that all ranks have a part in, as each of them answers it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from schemas.errors import RankLost
from storage.cancellation import end_all

T = TypeVar("T")
BLAME_S = 5.0
"""Seconds that the other ranks have to answer, once one has failed; then none of them is of use any more."""


async def collective(parts: Sequence[Awaitable[T]], give_up: Callable[[], None]) -> T:
    """Rank 0's answer once all have theirs, `parts` in the order of ranks.

    Raises the error of who failed first, but before all others that of a lost rank, which those who waited for it may
    have noticed sooner. give_up: called where some still wait then; they wait for one that will not come.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        first, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=BLAME_S)
        if waiting:
            give_up()
        answered = sorted((task for task in tasks if task not in waiting), key=lambda task: task not in first)
        errors = [error for task in answered if (error := task.exception()) is not None]
        if errors:
            raise min(errors, key=lambda error: not isinstance(error, RankLost))
        return tasks[0].result()
    finally:
        await end_all(*tasks)
