"""`TransferState`: the fold of which engines receive a weight version by a collective operation, and when.

An engine joins for the newest published version, and is a member of at most one epoch of it. Epochs follow each other:
while one is open, further engines wait for the next. The loss of a member or of the trainer ends an epoch.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.event import Event
from schemas.runs import RunResumed
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsPublished
from schemas.workers import WorkerJoined, WorkerLost

FOLDED = (
    *(TransferJoined, TransferBegun, TransferEnded),
    *(WeightsPublished, WeightsActivated, WorkerJoined, WorkerLost),
)
"""The events that change a `TransferState`, besides the run's own."""


class TransferState(msgspec.Struct):
    """Folded with `apply`, from the beginning of the log."""

    offered: Annotated[WeightsPublished | None, doc("Newest published version, if it is offered this way.")] = None
    waiting: Annotated[dict[str, TransferJoined], doc("Engines that wait for an epoch, in the order of joining.")] = (
        msgspec.field(default_factory=dict)
    )
    engines: Annotated[set[str], doc("Engines that have begun and are not lost.")] = msgspec.field(default_factory=set)
    open: Annotated[TransferBegun | None, doc("Epoch that has begun and not ended.")] = None
    lost: Annotated[str, doc("Why the open epoch must end: a member or its trainer is lost; empty if none is.")] = ""
    epochs: Annotated[int, doc("Epochs that have begun.")] = 0

    def apply(self, event: Event) -> None:
        """Fold an event."""
        match event:
            case WeightsPublished():
                self.offered = event if event.carrier is WeightsCarrier.COLLECTIVE else None
                self.waiting.clear()
            case TransferJoined():
                if self.offered is not None and event.version == self.offered.version:
                    self.waiting[event.engine] = event
            case WeightsActivated(engine=engine):
                self.waiting.pop(engine, None)  # it took the files
            case TransferBegun():
                self.open, self.epochs, self.lost = event, event.epoch, ""
                for engine in event.members:
                    self.waiting.pop(engine, None)
            case TransferEnded(epoch=epoch):
                if self.open is not None and self.open.epoch == epoch:
                    self.open, self.lost = None, ""
            case WorkerJoined(worker=worker, role="engine"):
                self.engines.add(worker)
            case WorkerJoined(worker=worker, role="trainer"):
                self.lost = f"the trainer {worker} has taken over" if self.open is not None else ""
            case WorkerLost(worker=worker):
                self._lose(worker)
            case RunResumed():  # no engine of the earlier incarnation is left
                self.waiting.clear()
                self.engines.clear()

    def _lose(self, worker: str) -> None:
        self.engines.discard(worker)
        self.waiting.pop(worker, None)
        if self.open is not None and worker in self.open.members:
            self.lost = f"its member {worker} is lost"

    @property
    def all_wait(self) -> bool:
        """Whether no engine is left that could still join."""
        return self.engines <= self.waiting.keys()

    def next_epoch(self, address: str) -> TransferBegun | None:
        """Return the next epoch with a sender at `address`, without its port; None if none can begin.

        Its members are the waiting engines that have the backend of the first. The sender is rank 0.
        """
        if self.open is not None or self.offered is None or not self.waiting:
            return None
        backend = next(iter(self.waiting.values())).backend
        members, rank = dict[str, int](), 1
        for engine, joined in self.waiting.items():
            if joined.backend == backend:
                members[engine] = rank
                rank += joined.ranks
        return TransferBegun(
            epoch=self.epochs + 1,
            version=self.offered.version,
            address=address,
            port=0,
            members=members,
            world=rank,
            backend=backend,
        )
