"""`Chain`: the weight versions of a run, each with its parent, read from the log without rollouts."""

from dataclasses import dataclass, field
from typing import Annotated

from schemas.doc import doc
from schemas.errors import InvalidValue, RunNotFound
from schemas.runs import RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.weights import WeightsPublished
from slime_events.loop.training.training_state import TRAINING, TrainingState
from storage.log import Readable, Recorded


@dataclass(slots=True)
class Chain:
    """The weight versions of a run."""

    run: Annotated[str, doc("name of the run")]
    trained: Annotated[TrainingState, doc("state of training in the log")] = field(default_factory=TrainingState)
    made_at: Annotated[dict[int, int], doc("UTC [ns] by version, the first included")] = field(default_factory=dict)
    started: Annotated[RunStarted | None, doc("start of the run; None if the log has none")] = None

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        self.trained.apply(event)
        if isinstance(event, RunStarted):
            self.started = event
        elif isinstance(event, StepCommitted | WeightsPublished):
            self.made_at.setdefault(event.version, recorded.envelope.at)

    @property
    def steps(self) -> range:
        return range(self.trained.first, max(self.trained.version, self.trained.first))

    def check(self, version: int) -> None:
        """Raise RunNotFound if the run has not made the version."""
        first, last = self.trained.first, self.trained.version
        if not first <= version <= last:
            there = f"there are {first} to {last}" if last >= 0 else "there is none yet"
            raise RunNotFound(f"run {self.run} has no weight version {version}: {there}")

    def parse_steps(self, text: str | None) -> range:
        """Parse `A:B`, `A:`, `:B` or `A`: steps A to B, both included; None: all. Raises InvalidValue, RunNotFound."""
        every = self.steps
        if not every:
            raise RunNotFound(f"run {self.run} has not committed a step yet, so there is nothing to retrain")
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
        """Return the wall time of the run for these steps, from the version that they begin with to the one that they
        end with.
        """
        begun, ended = self.made_at.get(steps.start), self.made_at.get(steps.stop)
        return None if begun is None or ended is None else (ended - begun) * 1e-9


async def read_chain(log: Readable) -> Chain:
    """Read the chain from a log as it is now."""
    chain = Chain(log.run)
    for subject in (about(log.run, "run", "run"), *(of_type(log.run, event_type) for event_type in TRAINING)):
        async for recorded in log.read(1, subject):
            chain.apply(recorded)
    return chain
