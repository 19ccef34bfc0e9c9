"""`off_loop`: processes a large request in a thread, so that the event loop serves other requests meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SMALL = 32 * 1024
"""Bytes up to which a request is processed on the event loop, in about a millisecond: a thread costs more."""
THREADS = 2
"""Large requests that are processed at once. Each needs many times its size in memory."""
T = TypeVar("T")
_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="large-request")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, from a thread if the request is large. size: bytes of the request.

    `work` must not read objects that others change meanwhile.
    """
    if size <= SMALL:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_pool, work)
