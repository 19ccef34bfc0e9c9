"""`normalize_rewards`: rewards relative to their group, as GRPO and its relatives use them. Needs no torch."""

from collections.abc import Sequence

from schemas.errors import DataError
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings


def normalize_rewards(rewards: Sequence[float], group_sizes: Sequence[int], settings: AlgorithmSettings) -> list[float]:
    """Return the normalized rewards in order. The rewards of a group are adjacent; groups may differ in size.

    If sizes differ, slime normalizes the whole batch as one group; here each group is normalized by itself.
    Raises DataError if the sizes do not add up or a reward is not finite.
    """
    if sum(group_sizes) != len(rewards) or any(size < 1 for size in group_sizes):
        raise DataError(f"group sizes {list(group_sizes)} do not divide {len(rewards)} rewards")
    if not settings.rewards_normalization:
        return [float(reward) for reward in rewards]
    estimator = estimator_of(settings)
    normalized: list[float] = []
    for size in group_sizes:
        start = len(normalized)
        normalized += estimator.reward_normalisation(rewards[start : start + size], settings)
    return normalized
