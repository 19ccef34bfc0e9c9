"""`Datum`: one sequence of a pass that a client asks for, with what its loss needs; and how an event carries many.

Position i of `tokens` predicts `targets[i]`. In an event they are a zstd frame of MessagePack: the lengths, and each
column of all datums end to end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard

from schemas.arrays import Array, pack
from schemas.errors import DamagedEvent, InvalidValue
from storage.compression import decompress

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
WEIGHTS, LOG_PROBS, ADVANTAGES = "weights", "logprobs", "advantages"
_POLICY = (LOG_PROBS, ADVANTAGES)
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}


@dataclass(frozen=True, slots=True)
class Loss:
    """inputs: float32 [targets] that each datum has. config: numbers that may be given, and what they are else."""

    inputs: tuple[str, ...]
    config: Mapping[str, float] = field(default_factory=dict)


LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss((WEIGHTS,)),
    "importance_sampling": Loss(_POLICY),
    "ppo": Loss(_POLICY, _CLIP),
    "cispo": Loss(_POLICY, _CLIP),
    "dro": Loss(_POLICY, {"beta": 0.05}),
}
"""By their names in the protocol; what they compute is in `slime_events/algorithms/token_losses.py`."""


@dataclass(frozen=True, slots=True)
class Datum:
    """tokens, targets: int32 [n]. inputs: float32 [n] by name."""

    tokens: Ints
    targets: Ints
    inputs: Mapping[str, Floats]

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
    """As an event carries them. All have the same inputs."""
    names = datums[0].inputs if datums else ()
    columns = _Columns(
        np.array([len(one.tokens) for one in datums], "<i4").tobytes(),
        _joined([one.tokens for one in datums], "<i4"),
        _joined([one.targets for one in datums], "<i4"),
        {name: _joined([one.inputs[name] for one in datums], "<f4") for name in names},
    )
    return pack(memoryview(zstandard.compress(msgspec.msgpack.encode(columns))).cast("b"), "int8")


def unpack_datums(packed: npt.NDArray[np.int8]) -> tuple[Datum, ...]:
    """Of `pack_datums`. Raises DamagedEvent."""
    try:
        columns = msgspec.msgpack.decode(decompress(packed.tobytes()), type=_Columns)
        ends = np.cumsum(np.frombuffer(columns.lengths, "<i4"))[:-1]
        tokens, targets = (np.split(np.frombuffer(data, "<i4"), ends) for data in (columns.tokens, columns.targets))
        inputs = {name: np.split(np.frombuffer(data, "<f4"), ends) for name, data in columns.inputs.items()}
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedEvent(f"datums that cannot be read: {error}") from error
    return tuple(
        Datum(one, targets[place], {name: parts[place] for name, parts in inputs.items()})
        for place, one in enumerate(tokens)
    )


def _joined(parts: Sequence[npt.NDArray[np.float32] | npt.NDArray[np.int32]], kind: str) -> bytes:
    return np.concatenate(parts).astype(kind, copy=False).tobytes() if parts else b""


@dataclass(frozen=True, slots=True)
class TrainPass:
    """One forward pass over datums, and backward where gradients are wanted. key: the digest of its command. config:
    the loss's numbers, those that were not given included.
    """

    key: str
    loss: str
    config: Mapping[str, float]
    datums: tuple[Datum, ...]

    @property
    def tokens(self) -> int:
        """Of all its datums."""
        return sum(one.total_length for one in self.datums)


class AdamParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one update, by the protocol's names and defaults. weight_decay: decoupled. grad_clip_norm: 0 clips nothing."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def check(self) -> None:
        """Raises InvalidValue."""
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not np.isfinite(value) or value < 0 or (name.startswith("beta") and value >= 1):
                raise InvalidValue(f"{name} {value}: it has to be a number from 0{' to 1' * name.startswith('beta')}")


@dataclass(frozen=True, slots=True)
class Beginning:
    """Weights to go on from, in the place of an update. version: of this run; None: those that it began with.
    optimizer: with the state that it had there; else a new one. folder, checkpoint: where weights and state lie, once
    that is known.
    """

    version: int | None = None
    optimizer: bool = False
    folder: str = ""
    checkpoint: str = ""


@dataclass(frozen=True, slots=True)
class CommandedStep:
    """What a client made a step of: gradients of the passes, summed in order, and one update; or a beginning."""

    passes: tuple[TrainPass, ...]
    update: AdamParams | Beginning


@dataclass(frozen=True, slots=True)
class PassResult:
    """log_probs: float32, of all targets of all datums end to end, in nats. loss: the sum over them."""

    log_probs: Floats
    loss: float
