"""`TrainData`: a user function's view of a step's samples, reduced to the columns that a batch can record.

A batch takes its samples' tokens and log-probs from their rollouts. Rewards, loss masks and columns that other user
functions read are recorded in the batch itself.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np

from schemas.batches import BatchColumn
from schemas.doc import doc
from slime_events.core.training.batch_columns import LOSS_MASKS, TRUNCATED, make_column
from slime_events.plugins.sample import Sample

_HOOK = "it is the rollouts': change it with --rollout-sample-hook-path"
_IMAGES, _BATCHES = "vision models are not supported", "set --global-batch-size and --num-steps-per-rollout"
FIXED: dict[str, tuple[Callable[[Sample], Any], str]] = {
    "tokens": (lambda sample: sample.tokens, _HOOK),
    "response_lengths": (lambda sample: sample.response_length, _HOOK),
    "total_lengths": (lambda sample: len(sample.tokens), _HOOK),
    "rollout_log_probs": (
        lambda sample: sample.rollout_log_probs,
        "it is the rollouts': change it in the trainer with --rollout-data-postprocess-path",
    ),
}
"""Keys that must equal the samples' own values: how to read the value, and where to change it."""
REFUSED = {
    "multimodal_inputs": _IMAGES,
    "multimodal_train_inputs": _IMAGES,
    "rollout_routed_experts": "the trainer reads them from the rollouts (--use-rollout-routing-replay)",
    "dynamic_global_batch_size": _BATCHES,
    "global_batch_sizes": _BATCHES,
}
"""Keys that a batch cannot have, and the reason."""
USUAL: dict[str, Callable[[Sample], Any]] = {
    LOSS_MASKS: lambda sample: [0] * sample.response_length if sample.remove_sample else sample.loss_mask,
    TRUNCATED: lambda sample: int(sample.status is Sample.Status.TRUNCATED),
    "sample_indices": lambda sample: sample.index,
}
"""Keys that are recorded only if they differ from slime's own conversion."""


class TrainData(NamedTuple):
    """Values of a batch's samples, in training order."""

    raw_rewards: Annotated[tuple[float, ...], doc("Rewards before normalization.")]
    rewards: Annotated[tuple[float, ...], doc("Rewards that advantages are computed from.")]
    columns: Annotated[tuple[BatchColumn, ...], doc("Columns that differ from the samples' own values.")]


def read_train_data(
    returned: object, samples: Sequence[Sample], raw_rewards: tuple[float, ...], rewards: tuple[float, ...]
) -> TrainData:
    """Return what the user's function returned as columns of a batch.

    `raw_rewards` and `rewards` apply if the function returned no such key. Raises ValueError with the key that a batch
    cannot have.
    """
    if not isinstance(returned, Mapping) or not returned:
        raise ValueError("a dict of lists under slime's names")
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
            raise ValueError(f"{key!r} unchanged: {instead}")
    return TrainData(raw_rewards, rewards, tuple(columns))


def _entries(key: object, value: object, count: int) -> list[object]:
    """Return one plain value for each sample. Return an empty list if the key has no values."""
    if value is None or (isinstance(value, list | tuple) and value and all(entry is None for entry in value)):
        return []
    if reason := REFUSED.get(str(key)):
        raise ValueError(f"no {key!r}: {reason}")
    entries = _plain(value)
    if not isinstance(entries, list | tuple) or len(entries) != count:
        raise ValueError(
            f"{key!r}: a list with an entry for each of the {count} samples, in their order; give a sample that is not "
            "trained a loss mask of zeros"
        )
    return [_plain(entry) for entry in entries]


def _column(key: str, entries: list[object], samples: Sequence[Sample]) -> BatchColumn:
    if key == LOSS_MASKS and not all(
        isinstance(mask, list | tuple) and len(mask) == sample.response_length and set(mask) <= {0, 1}
        for mask, sample in zip(entries, samples, strict=True)
    ):
        raise ValueError(f"{key!r}: 0 or 1 for each response token of each sample")
    try:
        return make_column(key, entries)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{key!r}: lists of numbers, or JSON values: {error}") from None


def _numbers(key: str, entries: Sequence[Any]) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, entries))
    except (TypeError, ValueError):
        numbers = (math.nan,)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{key!r}: a finite number for each sample")
    return numbers


def _plain(value: object) -> object:
    """Return arrays and tensors as lists."""
    if isinstance(value, list | tuple):
        are_arrays = value and all(hasattr(entry, "tolist") for entry in value)
        return [array.tolist() for array in value] if are_arrays else value
    return value.tolist() if hasattr(value, "tolist") else value


def _are_equal(left: Sequence[Any], right: Sequence[Any]) -> bool:
    """Compare entry by entry. NaN equals itself."""
    if left == right:
        return True
    try:
        pairs = zip(left, right, strict=True)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
    except TypeError:
        return False
