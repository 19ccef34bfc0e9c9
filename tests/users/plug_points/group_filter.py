"""--dynamic-sampling-filter-path: groups whose rewards differ, and every second of the others."""

from __future__ import annotations

from called import note
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample


def keep(args, samples: list[Sample], **kwargs) -> DynamicFilterOutput:
    rewards = [sample.get_reward_value(args) for sample in samples]
    note("keep", group=samples[0].group_index)
    if max(rewards) > min(rewards) or samples[0].group_index % 2 == 0:
        return DynamicFilterOutput(keep=True)
    return DynamicFilterOutput(keep=False, reason=f"all_{rewards[0]:.1f}")
