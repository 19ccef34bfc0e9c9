"""`Clock`: virtual time. Actions happen in the order of their times, those of one time in the order of their calls."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Virtual time from 0 [s]."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` when so much time has passed; a negative time counts as 0."""
        heapq.heappush(self._queue, (self.now + max(0.0, seconds), next(self._numbers), action))

    def run(self, until: Callable[[], bool]) -> bool:
        """Let time pass until `until` is true. Return False if nothing is left to happen before."""
        while not until():
            if not self._queue:
                return False
            self.now, _, action = heapq.heappop(self._queue)
            action()
        return True
