"""`Datum`: a sequence in a pass that a client commands, with the inputs of its loss, and its wire format in events.

Position i of `tokens` predicts `targets[i]`. An event has datums as a zstd frame of MessagePack: the lengths,
and each column of all datums end to end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from schemas.arrays import Array, pack
from schemas.doc import doc
from schemas.errors import DamagedEvent, InvalidValue
from storage.compression import decompress

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
WEIGHTS, LOG_PROBS, ADVANTAGES = "weights", "logprobs", "advantages"
_POLICY = (LOG_PROBS, ADVANTAGES)
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the protocol."""

    inputs: Annotated[tuple[str, ...], doc("names of the float32 [targets] inputs that each datum has")]
    config: Annotated[Mapping[str, float], doc("name to default of the loss's optional numbers")] = field(
        default_factory=dict
    )


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss((WEIGHTS,)),
    "importance_sampling": Loss(_POLICY),
    "ppo": Loss(_POLICY, _CLIP),
    "cispo": Loss(_POLICY, _CLIP),
    "dro": Loss(_POLICY, {"beta": 0.05}),
}
"""Losses by name in the protocol; `slime_events/algorithms/token_losses.py` computes them."""


@dataclass(frozen=True, slots=True)
class Datum:
    """A sequence with the inputs of its loss."""

    tokens: Annotated[Ints, doc("int32 [n], input tokens")]
    targets: Annotated[Ints, doc("int32 [n], the token that each position predicts")]
    inputs: Annotated[Mapping[str, Floats], doc("inputs of the loss by name, float32 [n] each")]

    @property
    def total_length(self) -> int:
        """Tokens that pass through the model."""
        return len(self.tokens)


class _Columns(msgspec.Struct):
    lengths: bytes
    tokens: bytes
    targets: bytes
    inputs: dict[str, bytes]


def pack_datums(datums: Sequence[Datum]) -> Array:
    """Return the datums in wire format. All must have the same inputs."""
    names = datums[0].inputs if datums else ()
    columns = _Columns(
        np.array([len(datum.tokens) for datum in datums], "<i4").tobytes(),
        _joined([datum.tokens for datum in datums], "<i4"),
        _joined([datum.targets for datum in datums], "<i4"),
        {name: _joined([datum.inputs[name] for datum in datums], "<f4") for name in names},
    )
    return pack(memoryview(zstandard.compress(msgspec.msgpack.encode(columns))).cast("b"), "int8")


def unpack_datums(packed: npt.NDArray[np.int8]) -> tuple[Datum, ...]:
    """Return the datums that `pack_datums` packed. Raises DamagedEvent."""
    try:
        columns = msgspec.msgpack.decode(decompress(packed.tobytes()), type=_Columns)
        ends = np.cumsum(np.frombuffer(columns.lengths, "<i4"))[:-1]
        tokens, targets = (np.split(np.frombuffer(data, "<i4"), ends) for data in (columns.tokens, columns.targets))
        inputs = {name: np.split(np.frombuffer(data, "<f4"), ends) for name, data in columns.inputs.items()}
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedEvent(f"datums cannot be decoded: {error}") from error
    return tuple(
        Datum(own, targets[index], {name: parts[index] for name, parts in inputs.items()})
        for index, own in enumerate(tokens)
    )


def _joined(parts: Sequence[npt.NDArray[np.float32] | npt.NDArray[np.int32]], kind: str) -> bytes:
    return np.concatenate(parts).astype(kind, copy=False).tobytes() if parts else b""


@dataclass(frozen=True, slots=True)
class TrainPass:
    """A forward pass over datums, with a backward pass if gradients are requested."""

    key: Annotated[str, doc("digest of its command")]
    loss: Annotated[str, doc("name in `LOSSES`")]
    config: Annotated[Mapping[str, float], doc("numbers of the loss, with defaults filled in")]
    datums: tuple[Datum, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all datums."""
        return sum(datum.total_length for datum in self.datums)


class AdamParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Adam's parameters for an update, with the protocol's names and defaults."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: Annotated[float, doc("decoupled weight decay")] = 0.0
    grad_clip_norm: Annotated[float, doc("gradient norm clip; 0: off")] = 0.0

    def check(self) -> None:
        """Raise InvalidValue if a number is out of range."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not np.isfinite(value) or value < 0 or (name.startswith("beta") and value >= 1):
                raise InvalidValue(
                    f"{name} {value}: it must be {'from 0 to below 1' if name.startswith('beta') else 'at least 0'}"
                )


@dataclass(frozen=True, slots=True)
class Beginning:
    """Weights to continue from, instead of an update."""

    version: Annotated[int | None, doc("version of this run; None: the run's first weights")] = None
    optimizer: Annotated[bool, doc("continue with the optimizer state of that version, not a new one")] = False
    folder: Annotated[str, doc("folder of the weights; empty until it is known")] = ""
    checkpoint: Annotated[str, doc("folder of the optimizer state; empty until it is known")] = ""


@dataclass(frozen=True, slots=True)
class CommandedStep:
    """A step that a client commands."""

    passes: Annotated[tuple[TrainPass, ...], doc("passes whose gradients are summed, in order")]
    update: Annotated[AdamParams | Beginning, doc("the update after the passes, or weights to continue from")]


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pass."""

    log_probs: Annotated[Floats, doc("float32 [all targets of all datums], natural log")]
    loss: Annotated[float, doc("sum over all targets")]
