"""A command: one call of a client that drives the trainer itself (docs/tinker.md), and its outcome."""

import enum
import hashlib
from typing import Annotated, Any

import msgspec

from schemas.arrays import EMPTY_BYTES, EMPTY_LOG_PROBS, Array
from schemas.doc import doc
from schemas.event import Event

_canonical = msgspec.msgpack.Encoder(order="sorted")


class CommandKind(enum.StrEnum):
    """Kind of a command.

    A step consists of forward_backward commands and one optim_step, or of one command that replaces the weights:
    load_weights, or create_model for a model other than the run's first. The other kinds change nothing.
    """

    CREATE_MODEL = "create_model"
    FORWARD = "forward"
    FORWARD_BACKWARD = "forward_backward"
    OPTIM_STEP = "optim_step"
    SAVE_WEIGHTS = "save_weights"
    SAVE_WEIGHTS_FOR_SAMPLER = "save_weights_for_sampler"
    LOAD_WEIGHTS = "load_weights"


class CommandGiven(Event, frozen=True, kw_only=True, tag="command.given"):
    """Appended by the gateway, once per client call, in any order. Commands run in the order of their numbers."""

    command: Annotated[str, doc("Id of the command: `<model>-<number>`.")]
    model: Annotated[str, doc("Model that the client calls.")]
    number: Annotated[int, doc("Number of the call among the model's calls; 0 creates the model.")]
    kind: Annotated[CommandKind, doc("Kind of the call.")]
    arguments: Annotated[dict[str, Any], doc("JSON values by the protocol's names.")] = {}
    datums: Annotated[
        Array, doc("Input of a forward or backward pass, packed as in `slime_events/core/training/datums.py`.")
    ] = EMPTY_BYTES
    samples: Annotated[
        tuple[str, ...], doc("Samples (purpose `call`) from which the client reports to have made the datums.")
    ] = ()
    source: Annotated[str, doc("Source whose token authenticated the call.")] = ""
    refused: Annotated[
        str,
        doc(
            "Why the command is not run, one sentence; empty if it is. A refused command takes its number, so that "
            "later commands do not wait for it."
        ),
    ] = ""

    def entity(self) -> str:
        return self.command

    def identity(self) -> tuple[str | int, ...]:
        # The digest makes two different calls with one number two events; the fence refuses the second.
        return (self.command, self.digest())

    def digest(self) -> str:
        """Return the sha256 (hex) of kind, arguments and datums; the digest of a batch of commands covers it."""
        content = (self.kind, self.arguments, self.datums.digest())
        return hashlib.sha256(_canonical.encode(content)).hexdigest()


class CommandDone(Event, frozen=True, kw_only=True, tag="command.done"):
    """Appended by the trainer, once per command, in the order of their numbers. If the command makes a step, the event
    is in one append with `step.committed`.
    """

    command: Annotated[str, doc("Id of the command.")]
    version: Annotated[int, doc("Weight version that the command used or made.")]
    log_probs: Annotated[
        Array, doc("float32 [targets]: log-probs (nats) of the targets of all datums, concatenated.")
    ] = EMPTY_LOG_PROBS
    metrics: Annotated[dict[str, float], doc("Metrics by the protocol's names.")] = {}
    path: Annotated[str, doc("Path of the saved weights; empty if the command saves none.")] = ""
    error: Annotated[str, doc("Why the command was not run, one sentence; empty if it was.")] = ""
    seconds: Annotated[float, doc("Seconds that the command took.")] = 0.0

    def entity(self) -> str:
        return self.command
