"""The few fields that rescoring needs of each event, decoded without the rest: most of its time is reading."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from schemas.arrays import Array
from schemas.batches import BatchSealed
from schemas.codec import decode
from schemas.evals import EvalCompleted
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.registry import BY_TYPE
from schemas.rewards import RewardFailureKind
from schemas.rollouts import StopReason, WeightSpan

T = TypeVar("T")


class PromptFields(msgspec.Struct, frozen=True, gc=False):
    """Of prompt.submitted."""

    group: str
    text: str
    purpose: Purpose = Purpose.TRAIN
    dataset: str = "train"
    version: int | None = None
    label: str | None = None
    metadata: dict[str, Any] = {}


class CompletedFields(msgspec.Struct, frozen=True, gc=False):
    """Of rollout.completed."""

    sample: str
    group: str
    length: int
    stop: StopReason
    text: str
    spans: tuple[WeightSpan, ...]
    loss_mask: Array | None = None
    rollout: str = ""
    prompt: Array | None = None
    prompt_text: str = ""
    metadata: dict[str, Any] = {}


class RewardFields(msgspec.Struct, frozen=True, gc=False):
    """Of reward.assigned."""

    sample: str
    group: str
    value: float
    grader: str
    grader_digest: str


class FailureFields(msgspec.Struct, frozen=True, gc=False):
    """Of reward.failed."""

    sample: str
    group: str
    kind: RewardFailureKind
    message: str


Fields = (
    PromptFields
    | CompletedFields
    | RewardFields
    | FailureFields
    | GroupAccepted
    | GroupRejected
    | BatchSealed
    | EvalCompleted
)


class _Wire(msgspec.Struct, Generic[T], frozen=True, gc=False):
    schema: int
    event: T


_FIELDS: dict[str, type[Fields]] = {
    "prompt.submitted": PromptFields,
    "rollout.completed": CompletedFields,
    "reward.assigned": RewardFields,
    "reward.failed": FailureFields,
    "group.accepted": GroupAccepted,
    "group.rejected": GroupRejected,
    "batch.sealed": BatchSealed,
    "eval.completed": EvalCompleted,
}
_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    tag: msgspec.msgpack.Decoder(_Wire[fields])  # type: ignore[valid-type]
    for tag, fields in _FIELDS.items()
}


def read_fields(tag: str, data: bytes) -> Fields | None:
    """What is needed of a stored event of type `tag`; None where it is nothing. Raises as `schemas.codec.decode`."""
    decoder = _DECODERS.get(tag)
    if decoder is None:
        return None
    try:
        wire = decoder.decode(data)
    except msgspec.DecodeError:
        wire = None  # of an older schema, or damaged: the codec knows which
    if wire is not None and wire.schema == BY_TYPE[tag].SCHEMA:
        found: Fields = wire.event
        return found
    return msgspec.convert(decode(data).event, _FIELDS[tag], from_attributes=True)
