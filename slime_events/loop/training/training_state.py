"""`TrainingState`: training so far, folded from the log. A trainer that takes over starts from it."""

from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.checkpoints import CheckpointSaved
from schemas.event import Event
from schemas.runs import Branched, RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.trainers import TrainerRestored
from schemas.weights import WeightsPublished
from slime_events.core.run.participant import Participant

TRAINING = ("step.committed", "weights.published", "checkpoint.saved", "trainer.restored")
"""The events that training appends; none is a rollout's."""


class Digests(NamedTuple):
    """sha256 (hex) of a trainer's weights, of its optimizer's state, and of a critic's weights and state, at one weight
    version. optimizer, critic: empty where none was computed (`--optimizer-digest`) or there is no critic."""

    weights: str
    optimizer: str
    critic: str = ""


def digests_of(said: StepCommitted | CheckpointSaved | Branched) -> Digests:
    """Those that an event holds."""
    return Digests(said.weights_digest, said.optimizer_digest, said.critic_digest)


@dataclass(slots=True)
class TrainingState:
    """first: the run's first version: 0, or the version that it branched off at. committed: digests by version.
    optimizer_steps: of the step that made a version.
    published: versions that engines may load. saved: checkpoints by version. restored: by trainers that took over.
    over: the run has ended, or was resumed without this worker.
    """

    first: int = 0
    committed: dict[int, Digests] = field(default_factory=dict)
    optimizer_steps: dict[int, int] = field(default_factory=dict)
    published: dict[int, WeightsPublished] = field(default_factory=dict)
    saved: dict[int, CheckpointSaved] = field(default_factory=dict)
    restored: list[TrainerRestored] = field(default_factory=list)
    over: bool = False

    def apply(self, event: Event) -> None:
        """Fold one event in."""
        if isinstance(event, StepCommitted):
            self.committed[event.version] = digests_of(event)
            self.optimizer_steps[event.version] = int(event.metrics.get("optimizer_steps", 0))
        elif isinstance(event, WeightsPublished):
            self.published[event.version] = event
        elif isinstance(event, CheckpointSaved):
            self.saved[event.version] = event
        elif isinstance(event, TrainerRestored):
            self.restored.append(event)
        elif isinstance(event, RunStarted) and event.branched is not None:
            self.first = event.branched.version
            self.committed[self.first] = digests_of(event.branched)

    @property
    def is_branch(self) -> bool:
        """Whether another run made the first version."""
        return self.first in self.committed

    @property
    def version(self) -> int:
        """The newest committed version; -1 before version 0. A branch's first version is committed by its parent."""
        return max((*self.committed, *self.published), default=-1)

    @property
    def newest_published(self) -> int:
        """The version that a starting engine loads; -1 before the first."""
        return max(self.published, default=-1)

    def matches(self, saved: CheckpointSaved) -> bool:
        """Whether the checkpoint has the weights that were committed for its version, and the states of optimizer and
        critic that were committed for it or that a trainer went on with from there."""
        committed = self.committed.get(saved.version)
        if committed is None or committed.weights != saved.weights_digest:
            return False
        later = ((one.optimizer_digest, one.critic_digest) for one in self.restored if one.version == saved.version)
        return (saved.optimizer_digest, saved.critic_digest) in (committed[1:], *later)


async def read_training_state(worker: Participant) -> TrainingState:
    """The fold of the worker's log as it is now; it reads no rollout."""
    trained, log = TrainingState(), worker.log
    for event_type in TRAINING:
        async for recorded in log.read(1, of_type(log.run, event_type)):
            trained.apply(recorded.envelope.event)
    async for recorded in log.read(1, about(log.run, "run", "run")):
        trained.apply(recorded.envelope.event)
        trained.over = worker.is_over(trained.over, recorded.envelope.event)
    return trained
