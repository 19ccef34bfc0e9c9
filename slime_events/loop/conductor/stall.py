"""`Stall`: how long a run has not moved on."""

from __future__ import annotations


class Stall:
    """A fold of looks at a run, by the caller's clock. deadline_s: seconds without progress that are too many.

    look_s: seconds that one look accounts for at most. While nobody looks, because the machine was paused or the log
    was away, others may not have moved either.
    """

    def __init__(self, deadline_s: float, look_s: float, now: float) -> None:
        self._deadline_s, self._look_s = deadline_s, look_s
        self._moved, self._idle, self._looked = -1, 0.0, now

    def seconds(self, moved: int, now: float) -> float | None:
        """Seconds without progress, once they reach the deadline. moved: position of what moved the run last."""
        self._idle = self._idle + min(now - self._looked, self._look_s) if moved == self._moved else 0.0
        self._moved, self._looked = moved, now
        return self._idle if self._idle >= self._deadline_s else None
