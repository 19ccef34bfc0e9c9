"""What differs between a recorded step and the same step trained again."""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.batches import BatchSealed
from schemas.errors import CheckpointMismatch
from schemas.steps import StepCommitted
from slime_events.loop.training.training_state import Digests
from storage.weights.files import TensorView, view
from storage.weights.shards import TensorBytes


class Compared(enum.StrEnum):
    """What of a step is compared, in the order in which one follows from the other."""

    REWARDS = "rewards"
    BATCH = "batch digest"
    COMMITTED_BATCH = "batch digest of the commit"
    FUNCTION = "digest of a user's function"
    MODEL = "weights of another model"
    WEIGHTS = "weights digest"
    OPTIMIZER = "optimizer digest"
    CRITIC = "critic digest"


class Difference(msgspec.Struct, frozen=True):
    """recorded: in the log; now: computed again from the log. detail: where, in words."""

    compared: Compared
    recorded: str
    now: str
    detail: str = ""

    def __str__(self) -> str:
        where = f" ({self.detail})" if self.detail else ""
        return f"{self.compared} {self.now} instead of {self.recorded}{where}"


def training_differences(committed: StepCommitted, trained: Digests) -> tuple[Difference, ...]:
    """Between a trained step and the committed one; empty where all digests that were committed are equal."""
    pairs = (
        (Compared.WEIGHTS, committed.weights_digest, trained.weights),
        (Compared.OPTIMIZER, committed.optimizer_digest, trained.optimizer),
        (Compared.CRITIC, committed.critic_digest, trained.critic),
    )
    return tuple(Difference(what, recorded, now) for what, recorded, now in pairs if recorded and recorded != now)


def part_differences(
    committed: StepCommitted, functions: Mapping[str, str], models: Mapping[str, str]
) -> tuple[Difference, ...]:
    """The user's functions that trained the step and have another source now, and other models with other weights."""
    parts = (
        (Compared.FUNCTION, committed.functions, functions, "was changed since the run"),
        (Compared.MODEL, committed.models, models, "has other weights than in the run"),
    )
    return tuple(
        Difference(what, digest, now.get(name, "missing"), f"{name} {said}")
        for what, recorded, now, said in parts
        for name, digest in recorded.items()
        if now.get(name) != digest
    )


def commit_differences(committed: StepCommitted, sealed: BatchSealed) -> tuple[Difference, ...]:
    """Whether the step was committed with another batch than the one in the log."""
    if committed.batch_digest == sealed.digest:
        return ()
    return (Difference(Compared.COMMITTED_BATCH, committed.batch_digest, sealed.digest),)


def reward_differences(sealed: BatchSealed, assigned: Mapping[str, float]) -> tuple[Difference, ...]:
    """Rewards in the batch that were not assigned to its samples, as one difference that names the first."""
    if sealed.post_process or sealed.converted_by:
        return ()  # the user's function made them of those that were assigned
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
    """max_abs: the largest difference of one number, in `tensor`. relative_l2: |now - recorded| / |recorded| over all
    numbers of all tensors.
    """

    max_abs: float
    relative_l2: float
    tensor: str


class PartDistance(msgspec.Struct, frozen=True):
    """Of some of the tensors. names: which. apart, whole: sums of squares of the differences and of the recorded
    numbers.
    """

    max_abs: float
    tensor: str
    apart: float
    whole: float
    names: frozenset[str]

    @classmethod
    def of(cls, recorded: Mapping[str, TensorView], trained: Iterable[TensorBytes]) -> "PartDistance":
        """Of these trained tensors from recorded ones, in float64. Raises CheckpointMismatch for another tensor."""
        largest, where, apart, whole, names = 0.0, "", 0.0, 0.0, set()
        for name, dtype, shape, data in trained:
            other = recorded.get(name)
            if other is None or (other.dtype, other.shape) != (dtype, tuple(shape)):
                raise CheckpointMismatch(
                    f"tensor {name!r} is {dtype} {list(shape)} here, and not in the recorded weights"
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
    """Of all tensors, from the parts that they were compared in. Raises CheckpointMismatch where one is missing."""
    if missing := recorded.keys() - frozenset().union(*(part.names for part in parts)):
        raise CheckpointMismatch(f"tensor {min(missing)!r} is in the recorded weights alone")
    apart, whole = sum(part.apart for part in parts), sum(part.whole for part in parts)
    furthest = max(parts, key=lambda part: part.max_abs)
    return Distance(furthest.max_abs, math.sqrt(apart / whole) if whole else math.inf, furthest.tensor)


def distance(recorded: Mapping[str, TensorView], trained: Iterable[TensorBytes]) -> Distance:
    """Of trained weights from recorded ones, in float64, by tensor. Raises CheckpointMismatch for other tensors."""
    return whole_distance(recorded, [PartDistance.of(recorded, trained)])


def _numbers(tensor: TensorView) -> npt.NDArray[np.float64]:
    if tensor.dtype == "BF16":  # the upper half of a float32
        wide: npt.NDArray[Any] = np.frombuffer(tensor.data, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64)
    return np.frombuffer(tensor.data, _DTYPES[tensor.dtype]).astype(np.float64)


class Retrained(msgspec.Struct, frozen=True):
    """A step that was trained again. seconds: with exporting its weights. differences: from the log; empty
    where they are equal bit for bit. distance: from the recorded weights, where these are others and their files there.
    """

    step: int
    version: int
    tokens: int
    seconds: float
    differences: tuple[Difference, ...] = ()
    distance: Distance | None = None
