"""`Stall`: how long a run has not moved on."""

from __future__ import annotations


class Stall:
    """A fold of looks at a run, by the caller's clock. deadline_s: seconds without progress that are too many."""

    def __init__(self, deadline_s: float, now: float) -> None:
        self._deadline_s, self._moved, self._since = deadline_s, -1, now

    def seconds(self, moved: int, now: float) -> float | None:
        """Seconds without progress, once they reach the deadline. moved: position of what moved the run last."""
        if moved != self._moved:
            self._moved, self._since = moved, now
        idle = now - self._since
        return idle if idle >= self._deadline_s else None
