"""--rollout-data-postprocess-path, over a column that --custom-convert-samples-to-train-data-path made; and
--custom-update-weight-post-write-path.
"""

from __future__ import annotations

import os

import torch
from called import note
from slime.utils.types import Sample


def convert(args, samples: list[Sample]) -> dict:
    """slime's own conversion with centred rewards, nothing learned of first tokens, and a column more."""
    rewards = [sample.get_reward_value(args) for sample in samples]
    mean = sum(rewards) / len(rewards)
    note("convert", samples=len(samples))
    return {
        "tokens": [sample.tokens for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [reward - mean for reward in rewards],
        "raw_reward": rewards,
        "truncated": [1 if sample.status == Sample.Status.TRUNCATED else 0 for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "loss_masks": [[0, *sample.loss_mask[1:]] for sample in samples],
        "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
        "multimodal_train_inputs": [sample.multimodal_train_inputs for sample in samples],
        "weights": [1.0 / sample.response_length for sample in samples],
    }


def only_second_tokens(args, rollout_id, rollout_data) -> None:
    """Trains one token of each sample, with an advantage of the sample's weight."""
    note("only_second_tokens", rollout_id=rollout_id, keys=sorted(rollout_data))
    for mask, advantages, weight in zip(
        rollout_data["loss_masks"], rollout_data["advantages"], rollout_data["weights"], strict=True
    ):
        mask[2:] = 0
        advantages.fill_(weight)


def push(args, version_dir, rollout_engines) -> None:
    """As to another host, once."""
    if torch.distributed.get_rank() == 0:
        note("push", version=os.path.basename(version_dir), files=sorted(os.listdir(version_dir)))
