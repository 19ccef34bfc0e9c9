"""`RunRecord`: a run's own events, read from its log, and the settings that a resumed run may change."""

from dataclasses import dataclass
from typing import Annotated, Any

from schemas.doc import doc
from schemas.errors import InvalidValue, RunNotFound
from schemas.runs import FinishReason, PromptFile, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from slime_events.core.config.fields import changeable, unchangeable
from slime_events.core.config.rules import Later
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_settings import differences, settings_in_force
from storage.log import Readable, Recorded

Changes = dict[str, dict[str, Any]]
"""New values by component and field."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run's past incarnations."""

    started: RunStarted
    resumed: tuple[RunResumed, ...]
    last: Annotated[Recorded, doc("Newest of the run's own events, including its ends")]
    steps: Annotated[int, doc("Committed steps, including those of a branch's parent")]

    @property
    def first(self) -> int:
        """Weight version that the run begins with: 0, or the version that it branched off from."""
        return self.started.branched.version if self.started.branched else 0

    @property
    def incarnation(self) -> int:
        """Number of the next incarnation."""
        return len(self.resumed) + 1

    @property
    def has_finished(self) -> bool:
        """Whether the run ended with all its steps."""
        end = self.last.envelope.event
        return isinstance(end, RunFinished) and end.reason is FinishReason.ALL_STEPS

    def is_over(self, steps: int | None) -> bool:
        """Whether the run has finished and has at least `steps` steps."""
        return self.has_finished and steps is not None and self.steps >= steps

    @property
    def prompt_files(self) -> dict[str, PromptFile]:
        """The run's prompt files by path, as the newest incarnation read each of them."""
        events: tuple[RunStarted | RunResumed, ...] = (self.started, *self.resumed)
        return {file.path: file for event in events for file in event.prompt_files or ()}

    @property
    def settings(self) -> TrainSettings:
        """The run's current settings."""
        return settings_in_force((self.started, *self.resumed))


async def read_run_record(log: Readable) -> RunRecord:
    """Read the record from the log. Raises RunNotFound if the log does not begin with run.started."""
    events = [recorded async for recorded in log.read(1, about(log.run, "run", "run"))]
    if not events or not isinstance(started := events[0].envelope.event, RunStarted):
        raise RunNotFound(
            f"the log of run {log.run} does not begin with run.started: start the run with slime-events train"
        )
    resumed = tuple(r.envelope.event for r in events if isinstance(r.envelope.event, RunResumed))
    newest = await log.last(of_type(log.run, "step.committed"))
    committed = newest.envelope.event if newest else None
    first = started.branched.version if started.branched else 0
    steps = committed.version if isinstance(committed, StepCommitted) else first
    return RunRecord(started, resumed, events[-1], steps)


def changes(before: TrainSettings, after: TrainSettings) -> Changes:
    """Return the fields that differ, with their new values."""
    changed: Changes = {}
    for difference in differences(before, after):
        changed.setdefault(difference.component, {})[difference.field] = difference.after
    return changed


def check_changes(changed: Changes, steps: int) -> None:
    """Raise InvalidValue that names the settings which a resumed run may not change. steps: committed so far."""
    fields = [(component, name) for component, values in changed.items() for name in values]
    if wrong := unchangeable(fields, Later.RESUME):
        raise InvalidValue(
            f"{', '.join(wrong)}: a resumed run cannot change what it trains; it may change "
            f"{', '.join(changeable(Later.RESUME))}. Start another run for other changes."
        )
    target = changed.get("rollout", {}).get("num_rollout")
    if target is not None and target < steps:
        raise InvalidValue(f"--num-rollout {target} is too small: {steps} steps are committed already.")
