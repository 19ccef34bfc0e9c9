"""Differences between a recorded step and the same step retrained."""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import CheckpointMismatch
from schemas.steps import StepCommitted
from slime_events.loop.training.training_state import Digests
from storage.weights.files import TensorView, view
from storage.weights.shards import TensorBytes


class Compared(enum.StrEnum):
    """Compared parts of a step. Later ones follow from earlier ones."""

    REWARDS = "rewards"
    BATCH = "batch digest"
    COMMITTED_BATCH = "batch digest of the commit"
    FUNCTION = "digest of a user's function"
    MODEL = "weights of another model"
    WEIGHTS = "weights digest"
    OPTIMIZER = "optimizer digest"
    CRITIC = "critic digest"


class Difference(msgspec.Struct, frozen=True):
    """A difference between the log and its repetition."""

    compared: Annotated[Compared, doc("what differs")]
    recorded: Annotated[str, doc("value in the log")]
    now: Annotated[str, doc("value computed again")]
    detail: Annotated[str, doc("where it differs, in words")] = ""

    def __str__(self) -> str:
        where = f" ({self.detail})" if self.detail else ""
        return f"{self.compared} {self.now} instead of {self.recorded}{where}"


def training_differences(committed: StepCommitted, trained: Digests) -> tuple[Difference, ...]:
    """Return the differences between a trained step and the committed one; empty if all committed digests are equal."""
    pairs = (
        (Compared.WEIGHTS, committed.weights_digest, trained.weights),
        (Compared.OPTIMIZER, committed.optimizer_digest, trained.optimizer),
        (Compared.CRITIC, committed.critic_digest, trained.critic),
    )
    return tuple(Difference(what, recorded, now) for what, recorded, now in pairs if recorded and recorded != now)


def part_differences(
    committed: StepCommitted, functions: Mapping[str, str], models: Mapping[str, str]
) -> tuple[Difference, ...]:
    """Return changed sources of the user's functions that trained the step, and changed weights of other models."""
    parts = (
        (Compared.FUNCTION, committed.functions, functions, "was changed since the run"),
        (Compared.MODEL, committed.models, models, "has other weights than in the run"),
    )
    return tuple(
        Difference(what, digest, now.get(name, "missing"), f"{name} {change}")
        for what, recorded, now, change in parts
        for name, digest in recorded.items()
        if now.get(name) != digest
    )


def commit_differences(committed: StepCommitted, sealed: BatchSealed) -> tuple[Difference, ...]:
    """Return a difference if the step was committed with another batch than the one in the log."""
    if committed.batch_digest == sealed.digest:
        return ()
    return (Difference(Compared.COMMITTED_BATCH, committed.batch_digest, sealed.digest),)


def reward_differences(sealed: BatchSealed, assigned: Mapping[str, float]) -> tuple[Difference, ...]:
    """Return the batch's rewards that were not assigned to its samples, as one difference that names the first."""
    if sealed.post_process or sealed.converted_by:
        return ()  # the user's function made them from the assigned ones
    pairs = zip(sealed.samples, sealed.raw_rewards, strict=True)
    wrong = [(sample, raw) for sample, raw in pairs if assigned.get(sample, raw) != raw]
    if not wrong:
        return ()
    sample, raw = wrong[0]
    more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    detail = f"of sample {sample}{more}: sealed {raw:g}, assigned {assigned[sample]:g}"
    return (Difference(Compared.REWARDS, f"{raw:g}", f"{assigned[sample]:g}", detail),)


_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class Distance(msgspec.Struct, frozen=True):
    """Distance of trained weights from recorded ones."""

    max_abs: Annotated[float, doc("largest difference of one number")]
    relative_l2: Annotated[float, doc("|now - recorded| / |recorded| over all numbers of all tensors")]
    tensor: Annotated[str, doc("tensor with the largest difference")]


class PartDistance(msgspec.Struct, frozen=True):
    """Distance of some of the tensors."""

    max_abs: Annotated[float, doc("largest difference of one number")]
    tensor: Annotated[str, doc("tensor with that difference")]
    apart: Annotated[float, doc("sum of squares of the differences")]
    whole: Annotated[float, doc("sum of squares of the recorded numbers")]
    names: Annotated[frozenset[str], doc("names of the tensors")]

    @classmethod
    def of(cls, recorded: Mapping[str, TensorView], trained: Iterable[TensorBytes]) -> "PartDistance":
        """Return the distance of these trained tensors from recorded ones, in float64. Raises CheckpointMismatch if one
        has no recorded counterpart.
        """
        largest, where, apart, whole, names = 0.0, "", 0.0, 0.0, set()
        for name, dtype, shape, data in trained:
            other = recorded.get(name)
            if other is None or (other.dtype, other.shape) != (dtype, tuple(shape)):
                raise CheckpointMismatch(
                    f"tensor {name!r} is {dtype} {list(shape)} here, but not in the recorded weights"
                )
            names.add(name)
            theirs, ours = _numbers(other), _numbers(view(name, dtype, shape, data))
            delta = np.abs(ours - theirs)
            if delta.size and (most := float(delta.max())) > largest:
                largest, where = most, name
            apart += float(np.dot(delta, delta))
            whole += float(np.dot(theirs, theirs))
        return cls(largest, where, apart, whole, frozenset(names))


def whole_distance(recorded: Mapping[str, TensorView], parts: Sequence[PartDistance]) -> Distance:
    """Return the distance of all tensors, from the parts that were compared. Raises CheckpointMismatch if a tensor is
    missing.
    """
    if missing := recorded.keys() - frozenset().union(*(part.names for part in parts)):
        raise CheckpointMismatch(f"tensor {min(missing)!r} is only in the recorded weights")
    apart, whole = sum(part.apart for part in parts), sum(part.whole for part in parts)
    furthest = max(parts, key=lambda part: part.max_abs)
    return Distance(furthest.max_abs, math.sqrt(apart / whole) if whole else math.inf, furthest.tensor)


def distance(recorded: Mapping[str, TensorView], trained: Iterable[TensorBytes]) -> Distance:
    """Return the distance of trained weights from recorded ones, in float64. Raises CheckpointMismatch if their tensors
    differ.
    """
    return whole_distance(recorded, [PartDistance.of(recorded, trained)])


def _numbers(tensor: TensorView) -> npt.NDArray[np.float64]:
    if tensor.dtype == "BF16":  # the upper half of a float32
        wide: npt.NDArray[Any] = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64)
    return np.frombuffer(tensor.data, _DTYPES[tensor.dtype]).astype(np.float64)


class Retrained(msgspec.Struct, frozen=True):
    """A retrained step."""

    step: Annotated[int, doc("number of the step")]
    version: Annotated[int, doc("version that it makes")]
    tokens: Annotated[int, doc("trained tokens")]
    seconds: Annotated[float, doc("duration with the export of its weights [s]")]
    differences: Annotated[tuple[Difference, ...], doc("differences from the log; empty if equal bit for bit")] = ()
    distance: Annotated[Distance | None, doc("distance from recorded weights that differ, if their files exist")] = None
