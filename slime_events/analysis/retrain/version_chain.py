"""`Chain`: the weight versions of a run, each with its parent. It is read from the log without any rollout."""

from dataclasses import dataclass, field

from schemas.errors import InvalidValue, RunNotFound
from schemas.runs import RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.weights import WeightsPublished
from slime_events.loop.training.training_state import TRAINING, TrainingState
from storage.log import Readable, Recorded


@dataclass(slots=True)
class Chain:
    """made_at: version to UTC nanoseconds, the run's first version included. started: None for a log without one."""

    run: str
    trained: TrainingState = field(default_factory=TrainingState)
    made_at: dict[int, int] = field(default_factory=dict)
    started: RunStarted | None = None

    def apply(self, recorded: Recorded) -> None:
        """Fold one event in."""
        event = recorded.envelope.event
        self.trained.apply(event)
        if isinstance(event, RunStarted):
            self.started = event
        elif isinstance(event, StepCommitted | WeightsPublished):
            self.made_at.setdefault(event.version, recorded.envelope.at)

    @property
    def steps(self) -> range:
        """The steps that were committed."""
        return range(self.trained.first, max(self.trained.version, self.trained.first))

    def check(self, version: int) -> None:
        """Raises RunNotFound for a version that the run has not made."""
        first, last = self.trained.first, self.trained.version
        if not first <= version <= last:
            there = f"there are {first} to {last}" if last >= 0 else "there is none yet"
            raise RunNotFound(f"run {self.run} has no weight version {version}: {there}")

    def chosen(self, text: str | None) -> range:
        """`A:B`, `A:`, `:B` or `A`: steps A to B, both included; None: all. Raises InvalidValue, RunNotFound."""
        every = self.steps
        if not every:
            raise RunNotFound(f"run {self.run} has committed no step yet: there is nothing to train again")
        if text is None:
            return every
        first, colon, last = text.partition(":")
        try:
            begin = int(first) if first else every.start
            end = int(last) if last else every.stop - 1 if colon else begin
        except ValueError:
            raise InvalidValue(f"--steps {text}: give A:B, A:, :B or A, such as 3:7 for steps 3 to 7") from None
        if not every.start <= begin <= end < every.stop:
            raise RunNotFound(f"run {self.run} has no steps {text}: there are {every.start} to {every.stop - 1}")
        return range(begin, end + 1)

    def seconds(self, steps: range) -> float | None:
        """Wall time of the run for these steps, between the versions that they begin and end with."""
        begun, ended = self.made_at.get(steps.start), self.made_at.get(steps.stop)
        return None if begun is None or ended is None else (ended - begun) * 1e-9


async def read_chain(log: Readable) -> Chain:
    """The chain in a log as it is now."""
    chain = Chain(log.run)
    for subject in (about(log.run, "run", "run"), *(of_type(log.run, event_type) for event_type in TRAINING)):
        async for recorded in log.read(1, subject):
            chain.apply(recorded)
    return chain
