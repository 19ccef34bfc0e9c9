"""`Trained`: what the log says of training so far. A trainer that takes over begins with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.checkpoints import CheckpointSaved
from schemas.event import Event
from schemas.runs import RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.weights import WeightsPublished
from slime_events.core.run.participant import Participant

TRAINING = ("step.committed", "weights.published", "checkpoint.saved")
"""The events that training says; no rollout is among them."""


class Digests(NamedTuple):
    """Of a trainer at one weight version: sha256 hex of its weights and of its optimizer's state."""

    weights: str
    optimizer: str


@dataclass(slots=True)
class Trained:
    """first: the version that the run begins with, 0 or that of the run it branches off. committed: digests of weights
    and optimizer, by the version that the step made. published: versions that engines may load. saved: checkpoints by
    version. over: the run has ended, or goes on without the worker.
    """

    first: int = 0
    committed: dict[int, Digests] = field(default_factory=dict)
    published: dict[int, WeightsPublished] = field(default_factory=dict)
    saved: dict[int, CheckpointSaved] = field(default_factory=dict)
    over: bool = False

    def apply(self, event: Event) -> None:
        """Fold one event in."""
        if isinstance(event, StepCommitted):
            self.committed[event.version] = Digests(event.weights_digest, event.optimizer_digest)
        elif isinstance(event, WeightsPublished):
            self.published[event.version] = event
        elif isinstance(event, CheckpointSaved):
            self.saved[event.version] = event
        elif isinstance(event, RunStarted) and event.branched is not None:
            self.first = event.branched.version
            self.committed[self.first] = Digests(event.branched.weights_digest, event.branched.optimizer_digest)

    @property
    def is_branch(self) -> bool:
        """Whether another run has made the version that this one begins with."""
        return self.first in self.committed

    @property
    def version(self) -> int:
        """The newest committed; -1 before version 0 was said. A branch's first is committed by its parent."""
        return max((*self.committed, *self.published), default=-1)

    @property
    def newest_published(self) -> int:
        """The version that a starting engine loads; -1 before the first was said."""
        return max(self.published, default=-1)

    def vouches_for(self, saved: CheckpointSaved) -> bool:
        """Whether the checkpoint has the digests that were committed with its version."""
        return self.committed.get(saved.version) == (saved.weights_digest, saved.optimizer_digest)


async def read_trained(worker: Participant) -> Trained:
    """The fold of the worker's log as it is now; reads no rollout."""
    trained, log = Trained(), worker.log
    for event_type in TRAINING:
        async for recorded in log.read(1, of_type(log.run, event_type)):
            trained.apply(recorded.envelope.event)
    async for recorded in log.read(1, about(log.run, "run", "run")):
        trained.apply(recorded.envelope.event)
        trained.over = worker.is_over(trained.over, recorded.envelope.event)
    return trained
