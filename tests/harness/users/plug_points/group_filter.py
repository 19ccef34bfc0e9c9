"""--dynamic-sampling-filter-path: groups whose rewards differ, and every second of the others."""

from __future__ import annotations

from called import note
from slime.rollout.filter_hub.base_types import DynamicFilterOutput
from slime.utils.types import Sample


def keep(args, samples: list[Sample | list[Sample]], **kwargs) -> DynamicFilterOutput:
    """A rollout that became several samples is a list of them."""
    every = [sample for member in samples for sample in (member if isinstance(member, list) else [member])]
    rewards = [sample.get_reward_value(args) for sample in every]
    kept = max(rewards) > min(rewards) or every[0].group_index % 2 == 0
    note("keep", kept=kept)
    return DynamicFilterOutput(keep=kept, reason=None if kept else f"all_{rewards[0]:.1f}")
