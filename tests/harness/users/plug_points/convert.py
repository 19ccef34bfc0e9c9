"""--custom-convert-samples-to-train-data-path: slime's own keys, rewards centred over the step, and a column more."""

from __future__ import annotations

from called import note
from slime.utils.types import Sample


def centred(args, samples: list[Sample]) -> dict:
    rewards = [sample.get_reward_value(args) for sample in samples]
    mean = sum(rewards) / len(rewards)
    note("convert", samples=len(samples))
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [reward - mean for reward in rewards],
        "raw_reward": rewards,
        "truncated": [int(sample.status == Sample.Status.TRUNCATED) for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "loss_masks": [[1] * (sample.response_length - 1) + [0] for sample in samples],
        "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
        "weights": [1.0 / sample.response_length for sample in samples],
    }
