"""Samples into the columns a trainer takes (slime's default behind `custom-convert-samples-to-train-data-path`)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import count
from typing import Any

from schemas.errors import DataError
from slime_events.algorithms.reward_norm import normalize_by_group
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.plugins.sample import Sample, Status


def fill_rollout_ids(rollout_ids: Sequence[int | None]) -> list[int]:
    """Each missing id gets the smallest unused one, in order."""
    used = {rollout for rollout in rollout_ids if rollout is not None}
    free = (number for number in count() if number not in used)
    return [next(free) if rollout is None else rollout for rollout in rollout_ids]


def mask_sums_by_rollout(loss_masks: Sequence[Sequence[int]], rollouts: Sequence[Hashable]) -> list[int]:
    """For each sample the trained tokens of its whole rollout: fan-out siblings share one sum."""
    sums: dict[Hashable, int] = {}
    for mask, rollout in zip(loss_masks, rollouts, strict=True):
        sums[rollout] = sums.get(rollout, 0) + sum(mask)
    return [sums[rollout] for rollout in rollouts]


def loss_mask_of(sample: Sample) -> list[int]:
    """The mask to train with [response]: all ones by default, all zeros for a removed sample.

    Raises DataError for a mask that is not as long as the response.
    """
    if sample.remove_sample:
        return [0] * sample.response_length
    mask = [1] * sample.response_length if sample.loss_mask is None else list(sample.loss_mask)
    if len(mask) != sample.response_length:
        raise DataError(f"sample {sample.index}: loss mask of {len(mask)} for a response of {sample.response_length}")
    return mask


def reward_of(sample: Sample, reward_key: str | None) -> float:
    """The number to train on. Raises DataError where the sample has none."""
    reward = sample.reward[reward_key] if isinstance(sample.reward, dict) and reward_key else sample.reward
    if not isinstance(reward, int | float):
        raise DataError(f"sample {sample.index}: reward {reward!r} is not a number; of a dict, name one by reward_key")
    return float(reward)


def convert_samples(
    samples: Sequence[Sample], settings: AlgorithmSettings, reward_key: str | None = None
) -> dict[str, list[Any]]:
    """Columns, one entry per sample. A removed sample is not trained on but still counts in its group's mean.

    `metadata["raw_reward"]` overrides what is shown as raw reward. Groups are told apart by `group_index`.
    """
    rewards = [reward_of(s, reward_key) for s in samples]
    rollouts = fill_rollout_ids([s.rollout_id for s in samples])
    masks = [loss_mask_of(s) for s in samples]
    return {
        "tokens": [s.tokens for s in samples],
        "response_lengths": [s.response_length for s in samples],
        "rewards": normalize_by_group(rewards, [s.group_index for s in samples], settings),
        "raw_reward": [s.metadata.get("raw_reward", r) for s, r in zip(samples, rewards, strict=True)],
        "truncated": [int(s.status is Status.TRUNCATED) for s in samples],
        "sample_indices": [s.index for s in samples],
        "rollout_ids": rollouts,
        "loss_masks": masks,
        "rollout_mask_sums": mask_sums_by_rollout(masks, rollouts),
    }
