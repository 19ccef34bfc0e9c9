"""`off_loop`: work on a large request in a thread, so that others are answered meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SMALL = 32 * 1024
"""Bytes of a request that are worked on at once: about a millisecond, and a thread would cost more than it."""
THREADS = 2
"""Large requests at once: what one takes of memory while it is read is many times its bytes."""
T = TypeVar("T")
_pool = ThreadPoolExecutor(THREADS, thread_name_prefix="large-request")


async def off_loop(size: int, work: Callable[[], T]) -> T:
    """What `work` returns. size: bytes of the request. It sees nothing that others change while it waits."""
    if size <= SMALL:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_pool, work)
