"""Figures of a step's rollouts for people to look at. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median


def describe(values: Sequence[float], name: str) -> dict[str, float]:
    """{name/mean, name/median, name/max, name/min}; {} of nothing."""
    if not values:
        return {}
    return {
        f"{name}/mean": fmean(values),
        f"{name}/median": float(median(values)),
        f"{name}/max": float(max(values)),
        f"{name}/min": float(min(values)),
    }


def zero_std(groups: Sequence[Sequence[float]]) -> dict[str, int]:
    """{zero_std/count_<reward>: groups}: how many groups have one reward throughout, by that reward to one digit."""
    counts = Counter(f"zero_std/count_{round(group[0], 1)}" for group in groups if group and len(set(group)) == 1)
    return dict(counts)
