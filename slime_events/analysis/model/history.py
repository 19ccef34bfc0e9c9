"""`History`: what was said in a run, by what it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from schemas.archives import ArchiveSealed
from schemas.errors import RunNotFound
from schemas.evals import EvalCompleted
from schemas.ids import place_of
from schemas.prompts import PromptRejected
from schemas.runs import Branched, RunFailed, RunFinished, RunResumed, RunStarted
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.analysis.model.parts import GroupHistory, Said, SampleHistory, StepHistory, T, VersionHistory
from slime_events.core.config.nearest import nearest


@dataclass(slots=True)
class History:
    """See the package. `events`: the last position folded in; first_at, last_at: UTC nanoseconds."""

    run: str
    events: int = 0
    first_at: int = 0
    last_at: int = 0
    lifetime: list[Said[RunStarted] | Said[RunResumed] | Said[RunFinished] | Said[RunFailed]] = field(
        default_factory=list
    )
    groups: dict[str, GroupHistory] = field(default_factory=dict)
    samples: dict[str, SampleHistory] = field(default_factory=dict)
    steps: dict[int, StepHistory] = field(default_factory=dict)
    versions: dict[int, VersionHistory] = field(default_factory=dict)
    evals: list[Said[EvalCompleted]] = field(default_factory=list)
    workers: dict[str, Said[WorkerJoined]] = field(default_factory=dict)
    lost: list[Said[WorkerLost]] = field(default_factory=list)
    bad_prompts: list[Said[PromptRejected]] = field(default_factory=list)
    segments: list[Said[ArchiveSealed]] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        """What the run was started with, one table per component; empty before run.started."""
        return next((said.event.settings for said in self.lifetime if isinstance(said.event, RunStarted)), {})

    @property
    def branched(self) -> Branched | None:
        """Where the run goes on from, if it is a branch."""
        return next((said.event.branched for said in self.lifetime if isinstance(said.event, RunStarted)), None)

    def find_group(self, name: str) -> GroupHistory:
        """A group by its id, or by a beginning of it that no other has. Raises RunNotFound with the nearest ids."""
        return self.groups[_find(name, self.groups, f"group of run {self.run}")]

    def find_sample(self, name: str) -> SampleHistory:
        """A sample by its id, or by a beginning of it that no other has. Raises RunNotFound with the nearest ids."""
        return self.samples[_find(name, self.samples, f"sample of run {self.run}")]

    def find_step(self, step: int) -> StepHistory:
        """A sealed step, counted from 0. Raises RunNotFound with the steps there are."""
        return _numbered(step, self.steps, "step", self.run)

    def find_version(self, version: int) -> VersionHistory:
        """A published weight version. Raises RunNotFound with the versions there are."""
        return _numbered(version, self.versions, "weight version", self.run)

    def group_of(self, sample: SampleHistory) -> GroupHistory:
        """The group that a sample belongs to."""
        return self.groups[sample.group]

    def members(self, group: GroupHistory) -> list[SampleHistory]:
        """The samples of a group, in index order."""
        return [self.samples[sample] for sample in sorted(group.samples, key=place_of)]

    def version_of_step(self, step: int | None) -> int | None:
        """The weight version that a step made, once it is committed."""
        found = self.steps.get(step) if step is not None else None
        return found.committed.event.version if found and found.committed else None


def _find(name: str, known: Iterable[str], what: str) -> str:
    ids = list(known)
    if name in ids:
        return name
    begun = [one for one in ids if one.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        more = ", ..." if len(begun) > 5 else ""
        raise RunNotFound(f"{len(begun)} ids begin with {name!r}; which {what} is it: {', '.join(begun[:5])}{more}")
    near = nearest(name, ids, 5) or tuple(ids[:5])
    raise RunNotFound(f"no {what} is called {name!r}; {'there is none' if not near else 'near: ' + ', '.join(near)}")


def _numbered(number: int, known: dict[int, T], what: str, run: str) -> T:
    if number in known:
        return known[number]
    there = f"there are {min(known)} to {max(known)}" if known else "there is none yet"
    raise RunNotFound(f"run {run} has no {what} {number}: {there}")
