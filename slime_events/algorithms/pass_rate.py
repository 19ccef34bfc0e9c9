"""Metrics of rollouts: pass@k (Chen et al., 2021), repetitive texts, dropped groups. Needs no torch."""

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import comb, fsum

from schemas.errors import DataError

WINDOW = 10_000
"""The last characters of a text, which `has_repetition` checks; a text up to this length is never repetitive."""
MAX_RATIO = 10.0


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Return the chance that k of the samples, drawn without replacement, include a correct one; k <= samples."""
    return 1 - comb(samples - correct, k) / comb(samples, k)


def pass_rate(rewards: Sequence[float], group_sizes: Sequence[int]) -> dict[str, float]:
    """Return {"pass@1": ..., "pass@2": ..., "pass@4": ...} up to the largest group: means over groups of k or more.

    The rewards of a group are adjacent; only a reward of exactly 1 is correct. The result is {} if no group has two
    samples.
    """
    if sum(group_sizes) != len(rewards):
        raise DataError(f"group sizes {list(group_sizes)} do not divide {len(rewards)} rewards")
    ends = zip(group_sizes, accumulate(group_sizes), strict=True)
    counts = [(size, sum(reward == 1 for reward in rewards[end - size : end])) for size, end in ends]
    largest = max(group_sizes, default=0)
    if largest < 2:
        return {}
    rates: dict[str, float] = {}
    for k in (2**i for i in range(largest.bit_length())):
        estimates = [pass_at_k(size, correct, k) for size, correct in counts if size >= k]
        if estimates:
            rates[f"pass@{k}"] = fsum(estimates) / len(estimates)
    return rates


def has_repetition(text: str) -> bool:
    """Return whether the end of a long text compresses more than tenfold (zlib at level 9)."""
    if len(text) <= WINDOW:
        return False
    tail = text[-WINDOW:].encode()
    return len(tail) / len(zlib.compress(tail, 9)) > MAX_RATIO


def drop_metrics(reasons: Iterable[str | None]) -> dict[str, int]:
    """Return groups by `rollout/dynamic_filter/drop_<reason>`. As in slime, a drop without a reason is not counted."""
    return dict(Counter(f"rollout/dynamic_filter/drop_{reason}" for reason in reasons if reason))
