"""`Rates`: how often each of many may come."""

import time
from collections.abc import Callable

MINUTE_S = 60.0
MANY = 1000
"""Names after which those that were quiet for a minute are forgotten."""


class Rates:
    """So many times a minute, and at once as many as nobody has used of the last one. It is this process's own count:
    another gateway has one of its own, and one that is started again begins at nothing. clock: seconds.

    Generic cell rate algorithm (ITU-T I.371), with a minute's worth as its burst.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used_until: dict[str, float] = {}

    def wait_s(self, name: str, per_minute: int | None) -> float:
        """Seconds until it may come; 0 where it may now, which is counted. per_minute: None for any number."""
        if per_minute is None:
            return 0.0
        now, cost = self._clock(), MINUTE_S / per_minute
        used_until = max(self._used_until.get(name, now), now) + cost
        if (over := used_until - now - MINUTE_S) > 1e-9:  # a sum of fractions may be above by a rounding
            return over
        if len(self._used_until) >= MANY:
            self._used_until = {other: until for other, until in self._used_until.items() if until > now}
        self._used_until[name] = used_until
        return 0.0
