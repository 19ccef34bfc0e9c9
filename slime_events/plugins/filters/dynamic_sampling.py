"""Drop groups whose rewards are all equal, since GRPO's advantages are then zero (DAPO, arXiv 2503.14476, 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slime_events.plugins.filters.base_types import DynamicFilterOutput
from slime_events.plugins.filters.decide import Filter, Member, group_std, rewards_of

MIN_STD = 1e-6


def check_reward_nonzero_std(args: object, samples: Sequence[Member], **_: object) -> DynamicFilterOutput:
    """Keep a group if the unbiased standard deviation of its rewards (float64) is above 1e-6.

    A group of one has no standard deviation and is dropped. The reason names the first reward: `zero_std_1.0`.
    """
    rewards = rewards_of(args, samples)
    std = group_std(rewards)
    if std is not None and std > MIN_STD:
        return DynamicFilterOutput(keep=True)
    return DynamicFilterOutput(keep=False, reason=f"zero_std_{round(rewards[0], 1)}")


def check_reward_nonzero_std_with_fallback(
    args: object, samples: Sequence[Member], **kwargs: object
) -> DynamicFilterOutput:
    """Apply `check_reward_nonzero_std`, but let a rejected group fill a step that would need more sampling."""
    output = check_reward_nonzero_std(args, samples, **kwargs)
    output.keep_when_insufficient = True
    return output


FILTERS: Mapping[str, Filter] = {
    function.__name__: function for function in (check_reward_nonzero_std, check_reward_nonzero_std_with_fallback)
}
"""Our own filters, by name."""
