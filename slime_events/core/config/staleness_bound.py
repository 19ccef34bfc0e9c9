"""`staleness_bound`: how many versions a sample may really be behind, by all settings that say so."""

from __future__ import annotations

import math


def staleness_bound(*, max_staleness: int, publish_every: int, draw: int | None, groups: int) -> int:
    """Versions. draw: groups of an over-sampling draw, None without; groups: of a step.

    Over-sampling keeps its surplus for later steps and so adds to `max_staleness`, and so do versions that are not
    published.
    """
    bound = max_staleness + publish_every - 1
    return bound if draw is None else bound + math.ceil((draw - 1) / groups)
