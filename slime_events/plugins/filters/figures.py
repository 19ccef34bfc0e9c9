"""The figures of one group's rewards that a filter decision is recorded with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from slime_events.plugins.sample import Sample

Member = Sample | list[Sample]
"""One member of a group: a sample, or the fragments of one trajectory, which share its reward."""


class RewardFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Of the group's rewards, float64. `std` is unbiased (n - 1); None for a group of one."""

    count: int
    mean: float
    std: float | None
    min: float
    max: float


def rewards_of(shown: Any, samples: Sequence[Member]) -> list[Any]:
    """One reward per member, in order. shown: what a filter sees as its `args`."""
    return [(member[0] if isinstance(member, list) else member).get_reward_value(shown) for member in samples]


def group_std(rewards: Sequence[float]) -> float | None:
    """Unbiased standard deviation in float64; None for fewer than two."""
    if len(rewards) < 2:
        return None
    return float(np.std(np.asarray(rewards, dtype=np.float64), ddof=1))


def figures_of(rewards: Sequence[float]) -> RewardFigures:
    """Figures of at least one reward."""
    values = np.asarray(rewards, dtype=np.float64)
    return RewardFigures(
        count=len(values),
        mean=float(values.mean()),
        std=group_std(rewards),
        min=float(values.min()),
        max=float(values.max()),
    )
