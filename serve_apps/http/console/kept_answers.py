"""`KeptAnswers`: the newest answers that took a while to compute."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

KEPT = 8


class KeptAnswers(Generic[Key, Value]):
    """Keeps the `KEPT` answers that were asked for last, and computes one at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._one_at_a_time = asyncio.Lock()

    async def get(self, key: Key, compute: Callable[[], Awaitable[Value]]) -> Value:
        """Return the answer of a key, computed if it is not kept. Raises the errors of `compute`."""
        async with self._one_at_a_time:
            if key not in self._kept:
                self._kept[key] = await compute()
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]
