"""`TrainData`: what a user's function made of a step's samples, as far as the step's batch can have it.

A batch has its samples' tokens and log-probs from their rollouts. Rewards, loss masks and columns that other functions
of the user read are the batch's own, and are recorded in it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from schemas.batches import BatchColumn
from slime_events.core.batch_columns import LOSS_MASKS, TRUNCATED, make_column
from slime_events.plugins.sample import Sample

_HOOK = "it is that of the rollouts: --rollout-sample-hook-path changes samples"
_IMAGES, _BATCHES = "models that see images are not built", "--global-batch-size and --num-steps-per-rollout say it"
FIXED: dict[str, tuple[Callable[[Sample], Any], str]] = {
    "tokens": (lambda sample: sample.tokens, _HOOK),
    "response_lengths": (lambda sample: sample.response_length, _HOOK),
    "total_lengths": (lambda sample: len(sample.tokens), _HOOK),
    "rollout_log_probs": (
        lambda sample: sample.rollout_log_probs,
        "it is that of the rollouts: --rollout-data-postprocess-path changes it in the trainer",
    ),
}
"""Keys that are as the samples have them, and where they are changed."""
REFUSED = {
    "multimodal_inputs": _IMAGES,
    "multimodal_train_inputs": _IMAGES,
    "rollout_routed_experts": "expert routing is not replayed in the trainer",
    "dynamic_global_batch_size": _BATCHES,
    "global_batch_sizes": _BATCHES,
}
USUAL: dict[str, Callable[[Sample], Any]] = {
    LOSS_MASKS: lambda sample: [0] * sample.response_length if sample.remove_sample else sample.loss_mask,
    TRUNCATED: lambda sample: int(sample.status is Sample.Status.TRUNCATED),
    "sample_indices": lambda sample: sample.index,
}
"""Keys that need no record where they are as slime's own conversion has them."""


class TrainData(NamedTuple):
    """Of a batch's samples in training order. columns: what is not as they have it, but for the rewards."""

    raw_rewards: tuple[float, ...]
    rewards: tuple[float, ...]
    columns: tuple[BatchColumn, ...]


def read_train_data(
    returned: object, samples: Sequence[Sample], raw_rewards: tuple[float, ...], rewards: tuple[float, ...]
) -> TrainData:
    """What the function returned. raw_rewards, rewards: where it has no such key. Raises ValueError with the key that a
    batch cannot have.
    """
    if not isinstance(returned, Mapping) or not returned:
        raise ValueError("a dict of lists, by slime's names")
    data = {str(key): entries for key, value in returned.items() if (entries := _entries(key, value, len(samples)))}
    raw_rewards = _numbers("raw_reward", data.pop("raw_reward", raw_rewards))
    rewards = _numbers("rewards", data.pop("rewards", rewards))
    columns = [
        _column(key, entries, samples)
        for key, entries in data.items()
        if not (key in USUAL and _are_equal(entries, list(map(USUAL[key], samples)))) and key not in FIXED
    ]
    for key, (of_sample, instead) in FIXED.items():
        if key in data and not _are_equal(data[key], list(map(of_sample, samples))):
            raise ValueError(f"{key!r} as the samples have it: {instead}")
    return TrainData(raw_rewards, rewards, tuple(columns))


def _entries(key: object, value: Any, count: int) -> list[Any]:
    """One for each sample, as plain values; none where the key says nothing."""
    if value is None or (isinstance(value, list | tuple) and value and all(one is None for one in value)):
        return []
    if reason := REFUSED.get(str(key)):
        raise ValueError(f"no {key!r}: {reason}")
    entries = _plain(value)
    if not isinstance(entries, list | tuple) or len(entries) != count:
        raise ValueError(
            f"{key!r}: a list with an entry for each of the {count} samples, in their order; what is not to be trained "
            "on has a loss mask of zeros"
        )
    return [_plain(one) for one in entries]


def _column(key: str, entries: list[Any], samples: Sequence[Sample]) -> BatchColumn:
    if key == LOSS_MASKS and not all(
        isinstance(mask, list | tuple) and len(mask) == sample.response_length and set(mask) <= {0, 1}
        for mask, sample in zip(entries, samples, strict=True)
    ):
        raise ValueError(f"{key!r}: 0 or 1 for each response token of each sample")
    try:
        return make_column(key, entries)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{key!r}: lists of numbers, or what JSON can say: {error}") from None


def _numbers(key: str, entries: Sequence[Any]) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, entries))
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{key!r}: a finite number for each sample")
    return numbers


def _plain(value: Any) -> Any:
    """Arrays and tensors as lists."""
    if isinstance(value, list | tuple):
        return [one.tolist() for one in value] if value and all(hasattr(one, "tolist") for one in value) else value
    return value.tolist() if hasattr(value, "tolist") else value


def _are_equal(one: list[Any], other: list[Any]) -> bool:
    """NaN is equal to itself."""
    if one == other:
        return True
    try:
        pairs = zip(one, other, strict=True)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    except TypeError:
        return False
