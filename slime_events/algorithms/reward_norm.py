"""Rewards relative to their group: what GRPO and its relatives learn from. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from schemas.errors import DataError
from slime_events.core.config.algorithm import AlgorithmSettings

CENTRED = frozenset({"grpo", "gspo", "cispo", "reinforce_plus_plus_baseline"})
"""Estimators whose rewards are centred on their group."""
SCALED = frozenset({"grpo", "gspo", "cispo"})
"""Estimators whose centred rewards may be divided by their group's standard deviation."""
EPS = 1e-6


def normalize_group(rewards: Sequence[float], *, scale: bool) -> list[float]:
    """reward - mean and, with `scale`, over (unbiased std + 1e-6); exact zeros where all rewards are equal.

    A group of one has no spread and is centred only.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise DataError(f"rewards {list(rewards)} are not all finite: a grader must give a number")
    if max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not scale:
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / (len(centred) - 1))
    return [value / (std + EPS) for value in centred]


def normalize_rewards(rewards: Sequence[float], group_sizes: Sequence[int], settings: AlgorithmSettings) -> list[float]:
    """Normalised rewards, in the order given; groups lie one after the other and may differ in size.

    slime normalises the whole batch as one group where sizes differ; here a group is always a group.
    Raises DataError where the sizes do not add up or a reward is not finite.
    """
    if sum(group_sizes) != len(rewards) or any(size < 1 for size in group_sizes):
        raise DataError(f"group sizes {list(group_sizes)} do not divide {len(rewards)} rewards")
    if not settings.rewards_normalization or settings.advantage_estimator not in CENTRED:
        return [float(reward) for reward in rewards]
    scale = settings.grpo_std_normalization and settings.advantage_estimator in SCALED
    normalized: list[float] = []
    for size in group_sizes:
        start = len(normalized)
        normalized += normalize_group(rewards[start : start + size], scale=scale)
    return normalized


def normalize_by_group(
    rewards: Sequence[float], groups: Sequence[Hashable], settings: AlgorithmSettings
) -> list[float]:
    """`normalize_rewards` for rewards in any order, each with the id of its group."""
    if len(rewards) != len(groups):
        raise DataError(f"{len(rewards)} rewards with {len(groups)} group ids")
    members: dict[Hashable, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    order = [place for places in members.values() for place in places]
    sizes = [len(places) for places in members.values()]
    by_group = normalize_rewards([rewards[place] for place in order], sizes, settings)
    normalized = [0.0] * len(rewards)
    for place, value in zip(order, by_group, strict=True):
        normalized[place] = value
    return normalized
