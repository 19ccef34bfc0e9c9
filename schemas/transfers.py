"""A transfer: a weight version that the trainer sends to a group of engines by a collective operation.

weights.published (carrier: collective) -> transfer.joined, by each engine that wants the version
                                        -> transfer.begun, an epoch with the engines that have joined
                                        -> transfer.ended
"""

import enum
from typing import Annotated

from schemas.doc import doc
from schemas.event import Event


class TransferOutcome(enum.StrEnum):
    """The end of an epoch as the trainer sees it. Each engine decides by the digest what it has received."""

    SENT = "sent"
    FAILED = "failed"


class TransferJoined(Event, frozen=True, kw_only=True, tag="transfer.joined"):
    """Appended by an engine that waits for an epoch with a version. It joins at most once for each version."""

    version: Annotated[int, doc("Weight version.")]
    engine: Annotated[str, doc("Worker id of the engine.")]
    ranks: Annotated[int, doc("Processes of the engine that receive the weights: its tensor parallel size.")] = 1
    backend: Annotated[str, doc("torch's backend for its device: `gloo` or `nccl`.")] = "gloo"

    def entity(self) -> str:
        return f"{self.version}-{self.engine}"


class TransferBegun(Event, frozen=True, kw_only=True, tag="transfer.begun"):
    """Appended by the trainer. Its members meet its sender at `address`; the sender is rank 0 of the group."""

    epoch: Annotated[int, doc("Number of the group in the run, from 1. A group exists for only one transfer.")]
    version: Annotated[int, doc("Weight version.")]
    address: Annotated[str, doc("Host name or address of the sender.")]
    port: Annotated[int, doc("Port of the sender's store, in which the members find each other.")]
    members: Annotated[dict[str, int], doc("First rank of each engine, by worker id.")]
    world: Annotated[int, doc("Ranks of the group, with the sender.")]
    backend: Annotated[str, doc("torch's backend, which all members have.")] = "gloo"

    def entity(self) -> str:
        return str(self.epoch)

    def identity(self) -> tuple[str | int, ...]:
        return self.epoch, self.address, self.port


class TransferEnded(Event, frozen=True, kw_only=True, tag="transfer.ended"):
    """Appended by the trainer. The members that have not received the whole version take its files."""

    epoch: Annotated[int, doc("Number of the group, as in `transfer.begun`.")]
    outcome: Annotated[TransferOutcome, doc("Whether the sender has sent everything.")]
    reason: Annotated[str, doc("Why it failed; empty if it did not.")] = ""
    seconds: Annotated[float, doc("Seconds since the sender began to listen.")] = 0.0

    def entity(self) -> str:
        return str(self.epoch)
