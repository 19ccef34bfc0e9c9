"""`TrainingState`: the progress of training, folded from the log. A trainer that takes over starts from it."""

from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from schemas.checkpoints import CheckpointSaved
from schemas.doc import doc
from schemas.event import Event
from schemas.runs import Branched, RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.trainers import TrainerRestored
from schemas.weights import WeightsPublished, WeightsStored
from slime_events.core.run.participant import Participant

TRAINING = ("step.committed", "weights.published", "weights.stored", "checkpoint.saved", "trainer.restored")
"""Types of the events that training appends, none of which belongs to a rollout."""


class Digests(NamedTuple):
    """Digests (sha256, hex) of a trainer at a weight version."""

    weights: str
    optimizer: Annotated[str, doc("of the optimizer's state; empty: not computed (`--optimizer-digest`)")]
    critic: Annotated[str, doc("of the critic's weights and state; empty: there is no critic")] = ""


def digests_of(event: StepCommitted | CheckpointSaved | Branched) -> Digests:
    """Return the digests in an event."""
    return Digests(event.weights_digest, event.optimizer_digest, event.critic_digest)


@dataclass(slots=True)
class TrainingState:
    """The progress of training."""

    first: Annotated[int, doc("first version of the run: 0, or the version that it branched off at")] = 0
    committed: Annotated[dict[int, Digests], doc("digests by version")] = field(default_factory=dict)
    optimizer_steps: Annotated[dict[int, int], doc("version to the optimizer steps of the step that made it")] = field(
        default_factory=dict
    )
    published: Annotated[dict[int, WeightsPublished], doc("versions that engines may load")] = field(
        default_factory=dict
    )
    unstored: Annotated[dict[int, str], doc("digests of committed versions whose files are not complete yet")] = field(
        default_factory=dict
    )
    saved: Annotated[dict[int, CheckpointSaved], doc("checkpoints by version")] = field(default_factory=dict)
    restored: Annotated[list[TrainerRestored], doc("restores by trainers that took over")] = field(default_factory=list)
    over: Annotated[bool, doc("the run has ended, or was resumed without this worker")] = False

    def apply(self, event: Event) -> None:
        """Fold an event in."""
        if isinstance(event, StepCommitted):
            self.committed[event.version] = digests_of(event)
            self.optimizer_steps[event.version] = int(event.metrics.get("optimizer_steps", 0))
            if not event.stored:
                self.unstored[event.version] = event.weights_digest
        elif isinstance(event, WeightsStored):
            self.unstored.pop(event.version, None)
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
        """Whether a different run made the first version."""
        return self.first in self.committed

    @property
    def version(self) -> int:
        """The newest committed version; -1 before version 0. Its parent committed a branch's first version."""
        return max((*self.committed, *self.published), default=-1)

    @property
    def newest_published(self) -> int:
        """The version that a starting engine loads; -1 before the first."""
        return max(self.published, default=-1)

    def matches(self, saved: CheckpointSaved) -> bool:
        """Return whether a checkpoint has the committed weights of its version, and matching states.

        The states of optimizer and critic must be those committed for the version, or those of a trainer that restored
        it.
        """
        committed = self.committed.get(saved.version)
        if committed is None or committed.weights != saved.weights_digest:
            return False
        restored = [event for event in self.restored if event.version == saved.version]
        states = [committed[1:], *((event.optimizer_digest, event.critic_digest) for event in restored)]
        return (saved.optimizer_digest, saved.critic_digest) in states


async def read_training_state(worker: Participant) -> TrainingState:
    """Return the fold of the worker's log as it is now. It reads no rollouts."""
    trained, log = TrainingState(), worker.log
    for event_type in TRAINING:
        async for recorded in log.read(1, of_type(log.run, event_type)):
            trained.apply(recorded.envelope.event)
    async for recorded in log.read(1, about(log.run, "run", "run")):
        trained.apply(recorded.envelope.event)
        trained.over = worker.is_over(trained.over, recorded.envelope.event)
    return trained
