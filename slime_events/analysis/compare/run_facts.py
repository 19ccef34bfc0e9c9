"""`RunFacts`: the records of a run that a comparison needs, and the step that each group belongs to."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.event import Purpose
from schemas.prompts import PromptSubmitted, as_text
from schemas.runs import RunStarted
from slime_events.analysis.compare.comparison import ComparedRun, Scalar
from slime_events.core.run.run_reader import OpenedRun
from slime_events.model import Group, Run, Sample, read_run
from storage.log import Recorded


@dataclass(slots=True)
class RunFacts:
    """Records of a run."""

    run: Annotated[Run, doc("all records of the run")]
    where: Annotated[str, doc("folder, or URL of the archive")] = ""
    settings: Annotated[dict[str, Any], doc("settings in force at the end, one table per component")] = field(
        default_factory=dict
    )
    prompts: Annotated[dict[str, str], doc("sha256 (hex) of the prompt's token ids, by group")] = field(
        default_factory=dict
    )

    def add(self, recorded: Recorded) -> None:
        """Take in the digest of a prompt's tokens: records hold no token ids."""
        event = recorded.envelope.event
        if isinstance(event, PromptSubmitted):
            self.prompts[event.group] = event.tokens.digest()

    def group(self, name: str) -> Group | None:
        return self.run.groups.get(name)

    def sample(self, name: str) -> Sample | None:
        return self.run.samples.get(name)

    def stages(self) -> dict[str, int]:
        """Return the step that each training group belongs to.

        This is the step whose batch has it. A group in no batch belongs to the first batch sealed after its verdict, so
        that causes come before effects, or else to the step after the last batch.
        """
        steps = sorted(self.run.steps)
        sealed = [self.run.steps[step].sealed.position for step in steps]
        following = steps[-1] + 1 if steps else self.first_step
        stages = {}
        for name, group in self.run.groups.items():
            if group.prompt is None or group.prompt.event.purpose is not Purpose.TRAIN:
                continue
            stages[name] = following if group.step is None else group.step
            if group.step is None and group.verdict is not None:
                after = bisect.bisect(sealed, group.verdict.position)
                stages[name] = steps[after] if after < len(steps) else following
        return stages

    @property
    def first_step(self) -> int:
        """First step that the run trains: that after the branch point for a branch."""
        branched = self.run.branched
        return min(self.run.steps, default=branched.version if branched else 0)

    @property
    def software(self) -> dict[str, Scalar]:
        """Version of this package and of others, as the run was started with."""
        started = next((entry.event for entry in self.run.lifetime if isinstance(entry.event, RunStarted)), None)
        if started is None:
            return {}
        others = {f"version of {name}": version for name, version in started.environment.items()}
        return {"version of slime-events": started.code_version, **others}

    @property
    def described(self) -> ComparedRun:
        """Name, place and steps of the run."""
        steps = self.run.steps
        first, last = min(steps, default=None), max(steps, default=None)
        return ComparedRun(run=self.run.run, where=self.where, first_step=first, last_step=last)

    def flat_settings(self) -> dict[str, Scalar]:
        """Return the settings by `component.field`, without the name of the run; lists and tables as JSON."""
        return {
            f"{component}.{name}": scalar(value)
            for component, table in self.settings.items()
            for name, value in table.items()
            if (component, name) != ("run", "run")
        }


def scalar(value: object) -> Scalar:
    """Return a value as it is if it is a scalar; None for None; else as JSON."""
    return value if isinstance(value, str | int | float | bool | None) else as_text(value)


async def read_facts(opened: OpenedRun) -> RunFacts:
    """Read the records of a run from its whole log."""
    facts = RunFacts(Run(opened.run), opened.where, msgspec.to_builtins(opened.settings))
    facts.run = await read_run(opened.log, facts.add)
    return facts
