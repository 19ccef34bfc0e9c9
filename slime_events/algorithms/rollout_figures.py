"""Figures of rollouts: texts that repeat themselves, dropped groups. Needs no torch."""

import zlib
from collections import Counter
from collections.abc import Iterable

AWAITS = "figures of rollouts among a step's metrics"

WINDOW = 10_000
"""Characters looked at, the last ones; a text that is not longer is never called repetitive."""
MAX_RATIO = 10.0


def has_repetition(text: str) -> bool:
    """Whether the end of a long text compresses more than tenfold (zlib at level 9)."""
    if len(text) <= WINDOW:
        return False
    tail = text[-WINDOW:].encode()
    return len(tail) / len(zlib.compress(tail, 9)) > MAX_RATIO


def drop_metrics(reasons: Iterable[str | None]) -> dict[str, int]:
    """`rollout/dynamic_filter/drop_<reason>` -> groups. A drop without a reason is not counted (slime)."""
    return dict(Counter(f"rollout/dynamic_filter/drop_{reason}" for reason in reasons if reason))
