"""`OwnTime`: a clock that advances with the calls of one taker, as they return to it from the server."""

CALLS = 6
"""Calls of each taker per lease."""


class OwnTime:
    """Seconds that passed while a taker's own calls returned, so a paused machine or server, or a lost connection, does
    not make others appear silent. lease_s: lease of the taker.
    """

    def __init__(self, lease_s: float) -> None:
        self.every_s = lease_s / CALLS
        self.seconds, self.ticks = 0.0, 0
        self._heard_at = 0.0

    def tick(self, now: float) -> None:
        """Advance at an own call. now: monotonic s."""
        passed = now - self._heard_at if self.ticks else 0.0
        self.seconds += min(passed, 2 * self.every_s)
        self._heard_at, self.ticks = now, self.ticks + 1

    def is_silent(self, since: float, lease_s: float) -> bool:
        """Return whether a taker that was heard last at `since` misses half of the calls of its lease."""
        return self.seconds - since > lease_s * (CALLS // 2) / CALLS
