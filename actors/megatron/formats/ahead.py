"""`ahead`: make the next item in a thread while the caller uses this one, such as to read while it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def ahead(make: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `make(item)` of each item, in order. Only one call runs at a time, and at most two results are held."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        waiting = None
        for item in items:
            coming = thread.submit(make, item)
            if waiting is not None:
                yield waiting.result()
            waiting = coming
        if waiting is not None:
            yield waiting.result()
