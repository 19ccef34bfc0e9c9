"""`VirtualGraders`: a pool of grader processes in virtual time, first come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from slime_events.analysis.what_if.clock import Clock


class VirtualGraders:
    """`count` graders; each grading waits `delay` seconds before it is in their queue."""

    def __init__(self, clock: Clock, count: int, delay: float) -> None:
        self._clock, self._free, self._delay = clock, count, delay
        self._queue: deque[tuple[float, Callable[[], None]]] = deque()

    def grade(self, seconds: float, on_end: Callable[[], None]) -> None:
        """Grade something that takes so long, then call `on_end`."""
        self._clock.after(self._delay, partial(self._arrive, seconds, on_end))

    def _arrive(self, seconds: float, on_end: Callable[[], None]) -> None:
        self._queue.append((seconds, on_end))
        self._next()

    def _next(self) -> None:
        while self._free and self._queue:
            seconds, on_end = self._queue.popleft()
            self._free -= 1
            self._clock.after(seconds, partial(self._end, on_end))

    def _end(self, on_end: Callable[[], None]) -> None:
        self._free += 1
        on_end()
        self._next()
