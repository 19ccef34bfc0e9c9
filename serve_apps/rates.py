"""`Rates`: a rate limit for each of many names."""

import time
from collections.abc import Callable

MINUTE_S = 60.0
MANY = 1000
"""Number of names after which those that were quiet for a minute are forgotten."""


class Rates:
    """Rate limits per minute. A name may save up the unused part of one minute for a burst.

    Each process counts by itself: another gateway has its own counts, and a restart begins at zero. `clock` is in
    seconds. Generic cell rate algorithm (ITU-T I.371), with a minute's worth as burst.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used_until: dict[str, float] = {}

    def wait_s(self, name: str, per_minute: int | None) -> float:
        """Return the seconds to wait; 0 if the request may come now, which counts it. None means no limit."""
        if per_minute is None:
            return 0.0
        now, cost = self._clock(), MINUTE_S / per_minute
        used_until = max(self._used_until.get(name, now), now) + cost
        if (over := used_until - now - MINUTE_S) > 1e-9:  # tolerance for the rounding of a sum of fractions
            return over
        if len(self._used_until) >= MANY:
            self._used_until = {other: until for other, until in self._used_until.items() if until > now}
        self._used_until[name] = used_until
        return 0.0
