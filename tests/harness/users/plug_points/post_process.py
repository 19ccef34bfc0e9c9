"""--custom-reward-post-process-path: rewards less the mean of the batch, not of each group."""

from __future__ import annotations

from called import note
from slime.utils.types import Sample


def centred(args, samples: list[Sample]):
    raw = [sample.get_reward_value(args) for sample in samples]
    mean = sum(raw) / len(raw)
    note("centred", samples=len(samples))
    return raw, [reward - mean for reward in raw]
