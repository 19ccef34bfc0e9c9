"""A command: one call of a client that drives the trainer itself (docs/tinker.md), and its outcome."""

import enum
import hashlib
from typing import Any

import msgspec

from schemas.arrays import EMPTY_BYTES, EMPTY_LOG_PROBS, Array
from schemas.event import Event

_canonical = msgspec.msgpack.Encoder(order="sorted")


class CommandKind(enum.StrEnum):
    """What a command asks for. A step is made of forward_backwards and one optim_step, or of one command that begins
    from other weights: load_weights, and create_model of a model that is not the run's first. Others change nothing.
    """

    CREATE_MODEL = "create_model"
    FORWARD = "forward"
    FORWARD_BACKWARD = "forward_backward"
    OPTIM_STEP = "optim_step"
    SAVE_WEIGHTS = "save_weights"
    SAVE_WEIGHTS_FOR_SAMPLER = "save_weights_for_sampler"
    LOAD_WEIGHTS = "load_weights"


class CommandGiven(Event, frozen=True, kw_only=True, tag="command.given"):
    """The gateway, once per call of a client, in whatever order calls arrive: they are carried out by their numbers.

    command: `<model>-<number>`. number: of the model's calls, from 0, which is its creation. arguments: JSON values, by
    the protocol's names. datums: what a pass goes over, packed as `slime_events/core/datums.py` has it. samples: of
    purpose `call`, that the client says the datums are made of. source: whose token it came with. refused: why it is
    not carried out, one sentence: it takes its number alone, so that later ones do not wait for it. Empty else.
    """

    command: str
    model: str
    number: int
    kind: CommandKind
    arguments: dict[str, Any] = {}
    datums: Array = EMPTY_BYTES
    samples: tuple[str, ...] = ()
    source: str = ""
    refused: str = ""

    def entity(self) -> str:
        return self.command

    def identity(self) -> tuple[str | int, ...]:
        # With its content: another call of the same number is refused by the fence.
        return (self.command, self.digest())

    def digest(self) -> str:
        """sha256 of what is asked, hex: a batch of commands has it in its own digest."""
        asked = (self.kind, self.arguments, self.datums.digest())
        return hashlib.sha256(_canonical.encode(asked)).hexdigest()


class CommandDone(Event, frozen=True, kw_only=True, tag="command.done"):
    """The trainer, once per command, in the order of their numbers; of one that makes a step in one append with
    step.committed.

    version: the weights that it was carried out on, or made. log_probs: of a pass, float32 of all its datums' targets
    end to end, in nats. metrics: by the protocol's names. path: of what was saved. error: why it was not carried out,
    one sentence; empty where it was.
    """

    command: str
    version: int
    log_probs: Array = EMPTY_LOG_PROBS
    metrics: dict[str, float] = {}
    path: str = ""
    error: str = ""
    seconds: float = 0.0

    def entity(self) -> str:
        return self.command
