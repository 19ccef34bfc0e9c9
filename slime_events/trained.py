"""`Trained`: what the log says of training so far. A trainer that takes over begins with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.checkpoints import CheckpointSaved
from schemas.event import Event
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.weights import WeightsPublished
from slime_events.worker import Worker


@dataclass(slots=True)
class Trained:
    """committed: digests of weights and optimizer, by the version that the step made. published: versions that engines
    may load. saved: checkpoints by version. over: the run has ended, or goes on without the
    worker.
    """

    committed: dict[int, tuple[str, str]] = field(default_factory=dict)
    published: dict[int, WeightsPublished] = field(default_factory=dict)
    saved: dict[int, CheckpointSaved] = field(default_factory=dict)
    over: bool = False

    def apply(self, event: Event) -> None:
        """Fold one event in."""
        if isinstance(event, StepCommitted):
            self.committed[event.version] = (event.weights_digest, event.optimizer_digest)
        elif isinstance(event, WeightsPublished):
            self.published[event.version] = event
        elif isinstance(event, CheckpointSaved):
            self.saved[event.version] = event

    @property
    def version(self) -> int:
        """The newest committed; -1 before version 0 was said."""
        return max((*self.committed, *self.published), default=-1)

    @property
    def newest_published(self) -> int:
        """The version that a starting engine loads; -1 before version 0 was said."""
        return max(self.published, default=-1)

    def vouches_for(self, saved: CheckpointSaved) -> bool:
        """Whether the checkpoint has the digests that were committed with its version."""
        return self.committed.get(saved.version) == (saved.weights_digest, saved.optimizer_digest)


async def read_trained(worker: Worker) -> Trained:
    """The fold of the worker's log as it is now; reads no rollout."""
    trained, log = Trained(), worker.log
    for event_type in ("step.committed", "weights.published", "checkpoint.saved"):
        async for recorded in log.read(1, of_type(log.run, event_type)):
            trained.apply(recorded.envelope.event)
    async for recorded in log.read(1, about(log.run, "run", "run")):
        trained.over = worker.is_over(trained.over, recorded.envelope.event)
    return trained
