"""`Ancestry`: runs from which a run's weights derive, back to the first. `Branches`: runs that branched off from it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import RunNotFound, SlimeEventsError
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of, is_archive, open_archive, open_run
from slime_events.model.lookup import EventKey, LogPart, record_events
from slime_events.model.records import Run, fold_run
from storage.archive.log import ArchivedLog
from storage.log import Recorded
from storage.object_store import ObjectFolder


class VersionRange(msgspec.Struct, frozen=True, kw_only=True):
    """Weight versions that one run made, both ends included."""

    run: Annotated[str, doc("name of the run")]
    first: Annotated[int, doc("first version")]
    last: Annotated[int, doc("last version")]

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class JoinedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an ancestry. The last four fields are set for a branch."""

    run: Annotated[str, doc("name of the run")]
    where: Annotated[str, doc("folder or URL that the run is opened with")]
    parent: Annotated[str | None, doc("run that it branched off from")] = None
    version: Annotated[int | None, doc("weight version at which it branched off")] = None
    position: Annotated[int | None, doc("position in the parent's log")] = None
    follows: Annotated[bool, doc("whether it is trained on its parent's rollouts")] = False

    @classmethod
    def of(cls, run: str, where: str, join: Branched | None) -> JoinedRun:
        """Return a run that branched off at `join`, or that begins on its own."""
        if join is None:
            return cls(run=run, where=where)
        return cls(
            run=run, where=where, parent=join.run, version=join.version, position=join.position, follows=join.follows
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Ancestor(LogPart):
    """A run of an ancestry, with the part of its log that belongs to the ancestry."""

    opened: Annotated[OpenedRun, doc("the run")]
    branched: Annotated[Branched | None, doc("where it branched off; None for the first run")]
    until: Annotated[int, doc("its first step outside the ancestry")] = sys.maxsize

    @property
    def run(self) -> str:
        return self.opened.run

    @property
    def first_step(self) -> int:
        """The run's first own step."""
        return self.branched.version if self.branched else 0

    @property
    def follows(self) -> bool:
        """Whether its rollouts are its parent's."""
        return self.branched is not None and self.branched.follows

    def has(self, step: int) -> bool:
        """Return whether a step of the ancestry is this run's own."""
        return self.first_step <= step < self.until

    async def last_sealed(self) -> int:
        """Return the run's last step within the ancestry that has a batch; less than `first_step` if none has."""
        last = await self.newest(BatchSealed)
        return min(last.step, self.until - 1) if last else self.first_step - 1


@contextlib.asynccontextmanager
async def open_ancestry(opened: OpenedRun) -> AsyncIterator[Ancestry]:
    """Open the ancestry of a run. Parents are opened when they are needed, and closed with the ancestry. The run itself
    stays open.
    """
    async with contextlib.AsyncExitStack() as parents:
        yield Ancestry(Ancestor(opened.log, opened=opened, branched=await branched_of(opened.log)), parents)


class Ancestry:
    """The runs of an ancestry, made by `open_ancestry`. own: the run that it starts from."""

    def __init__(self, own: Ancestor, parents: contextlib.AsyncExitStack) -> None:
        self.own, self._runs, self._parents = own, [own], parents

    async def parent(self, ancestor: Ancestor) -> Ancestor | None:
        """Return the run that `ancestor` branched off from. Raises RunNotFound if that run is gone."""
        index = self._runs.index(ancestor)
        if index + 1 < len(self._runs):
            return self._runs[index + 1]
        branched = ancestor.branched
        if branched is None:
            return None
        try:
            opened = await self._parents.enter_async_context(open_run(branched.where))
        except RunNotFound as error:
            raise RunNotFound(
                f"run {ancestor.run} branched off from version {branched.version} of run {branched.run}, which was at "
                f"{branched.where}: {error}. To look further back, restore that run or its archive there"
            ) from error
        end = sys.maxsize if branched.follows else branched.position
        own = await branched_of(opened.log)
        self._runs.append(Ancestor(opened.log, end, opened=opened, branched=own, until=branched.version))
        return self._runs[-1]

    async def all(self) -> AsyncIterator[Ancestor]:
        """Yield the runs, from the run itself back to the first."""
        ancestor: Ancestor | None = self.own
        while ancestor is not None:
            yield ancestor
            ancestor = await self.parent(ancestor)

    async def records(self, ancestor: Ancestor, **of: Iterable[object]) -> Run:
        """Return the records of samples, groups, steps and versions (see `record_events`), each from its last events:
        those in the log of `ancestor`, and for missing ones those of the runs that it follows. `Entry.run` names the
        run of an event.
        """
        keys = record_events(**of)  # type: ignore[arg-type]
        events: dict[EventKey, Recorded] = {}
        part: Ancestor | None = ancestor
        while part is not None:
            events |= await part.last_of_each([key for key in keys if key not in events])
            part = await self.parent(part) if part.follows else None
        return fold_run(ancestor.run, (events[key] for key in keys if key in events))

    async def of_step(self, step: int) -> Ancestor:
        """Return the run that made a step."""
        async for ancestor in self.all():
            if step >= ancestor.first_step:
                return ancestor
        raise RunNotFound(f"step {step} does not exist: steps begin with 0")

    async def of_version(self, run: str, version: int) -> tuple[Ancestor, str]:
        """Return the run whose log has a version of `run`, and the name of the run that made the version."""
        for ancestor in self._runs:
            if ancestor.run == run and version > ancestor.until:
                return ancestor, run
        # A branch repeats the version that it begins with, so its parent need not be opened.
        return await self.of_step(version), self.versions(version, version)[0].run

    def of_run(self, run: str) -> Ancestor:
        """Return one of the opened runs."""
        return next(ancestor for ancestor in self._runs if ancestor.run == run)

    async def step_of(self, group: str, origin: Ancestor, decided: int) -> int | None:
        """Return the step whose batch has a group that `origin` decided on at position `decided`, or None.

        Searches forward from that decision, along the runs that follow `origin`.
        """
        async for ancestor in self.all():
            first, last = ancestor.first_step, await ancestor.last_sealed()
            if ancestor is origin:
                return await ancestor.step_of(group, first, last, decided)
            if ancestor.follows and (step := await ancestor.step_of(group, first, last)) is not None:
                return step
        raise RunNotFound(f"run {origin.run} is not an ancestor of run {self.own.run}")

    async def newest(self) -> int:
        """Return the run's newest version, committed or published at its beginning; -1 if it has none."""
        last = await self.own.newest(StepCommitted) or await self.own.newest(WeightsPublished)
        return last.version if last else -1

    def runs(self) -> tuple[JoinedRun, ...]:
        """Return the opened runs, the oldest first."""
        return tuple(JoinedRun.of(run.run, run.opened.where, run.branched) for run in reversed(self._runs))

    def versions(self, first: int, last: int) -> tuple[VersionRange, ...]:
        """Return versions `first` to `last` by the run that made them, the oldest first. An unopened parent is included
        by name.
        """
        ranges: list[VersionRange] = []
        for ancestor in self._runs:
            # A branch repeats its first version, which its parent made.
            begin = ancestor.first_step + 1 if ancestor.branched else 0
            if last >= max(first, begin):
                ranges.append(VersionRange(run=ancestor.run, first=max(first, begin), last=last))
            last = min(last, begin - 1)
        oldest = self._runs[-1].branched
        if oldest is not None and last >= first:
            ranges.append(VersionRange(run=oldest.run, first=first, last=last))
        return tuple(reversed(ranges))


class Branch(NamedTuple):
    """A run that branched off from another."""

    run: Annotated[JoinedRun, doc("the branch")]
    newest: Annotated[int, doc("its newest version")]
    batches: Annotated[Mapping[str, int], doc("step of each sample, if it is trained on its parent's rollouts")]


class Branches(NamedTuple):
    """The runs that branched off from a run, and which of their versions derive from a version or a sample of that run.

    A run does not know its branches. They are searched for among its neighbours: in the same folder of runs, or under
    the same URL of archives. A branch is skipped if its first weights differ from the run's: then it belongs to another
    run of that name.
    """

    branches: Annotated[tuple[Branch, ...], doc("each after its parent")] = ()
    notes: Annotated[tuple[str, ...], doc("neighbours that could not be read, one sentence each")] = ()

    def of_sample(self, run: str, sample: str, into: int | None) -> tuple[VersionRange, ...]:
        """Return the versions that derive from a sample of `run`. into: the version of `run` that was trained on it."""
        first = {} if into is None else {run: into}
        for branch in self.branches:
            step = branch.batches.get(sample)
            if step is not None and branch.run.parent == run:
                first[branch.run.run] = step + 1
        return self.of_versions(first)

    def of_versions(self, first: Mapping[str, int]) -> tuple[VersionRange, ...]:
        """Return the versions that derive from these. first: by run, the first version that it made or shares."""
        reached = dict(first)
        for branch in self.branches:
            parents, join = reached.get(branch.run.parent or ""), branch.run.version or 0
            if branch.run.run not in reached and parents is not None and join >= parents:
                reached[branch.run.run] = join + 1
        return tuple(
            VersionRange(run=branch.run.run, first=reached[branch.run.run], last=branch.newest)
            for branch in self.branches
            if branch.newest >= reached.get(branch.run.run, branch.newest + 1)
        )


async def find_branches(opened: OpenedRun) -> Branches:
    """Find the branches of an opened run, and their branches. The notes name each neighbour that cannot be read."""
    joined: dict[str, tuple[LogPart, str, Branched]] = {}
    notes: list[str] = []
    for where in await asyncio.to_thread(_neighbours, opened):
        try:
            log = await asyncio.to_thread(_archived, where)
            branched = await branched_of(log)
        except SlimeEventsError as error:
            notes.append(f"{where} may be a branch, but cannot be read: {str(error).splitlines()[0]}")
            continue
        if log.run not in (opened.run, *joined) and branched is not None:
            joined[log.run] = LogPart(log), str(where), branched
    parents, branches = [LogPart(opened.log)], list[Branch]()
    for parent in parents:  # each branch becomes a parent
        for part, where, branched in joined.values():
            if branched.run == parent.log.run:
                begun = (await parent.records(versions=[branched.version])).version(branched.version)
                if begun.digest == branched.weights_digest:
                    parents.append(part)
                    branches.append(await _branch(part, where, branched))
    return Branches(tuple(branches), tuple(notes))


def _neighbours(opened: OpenedRun) -> list[Path | str]:
    """Return folders of other runs, or URLs of other archives."""
    if opened.folder is not None:
        own = opened.folder.path.resolve()
        runs = sorted(settings.parent for settings in own.parent.glob("*/settings.toml"))
        return [run for run in runs if run.resolve() != own]
    if not is_archive(opened.where):
        return []
    url, _, own_name = opened.where.rstrip("/").rpartition("/")
    return [f"{url}/{name}" for name in ObjectFolder(url).folders() if name != own_name]


def _archived(where: Path | str) -> ArchivedLog:
    """Return the archived part of a neighbour's log, so that no server is started for it. Raises RunNotFound."""
    if isinstance(where, Path):
        folder = RunFolder(where.parent, where.name)
        where = f"{folder.archive_url()}/{folder.log_name()}"
    reader = open_archive(where)
    return ArchivedLog(reader, reader.run)


async def _branch(part: LogPart, where: str, branched: Branched) -> Branch:
    batches = dict[str, int]()
    if branched.follows:
        async for batch in part.events(BatchSealed):
            batches |= dict.fromkeys(batch.samples, batch.step)
    newest = await part.newest(StepCommitted) or branched
    return Branch(JoinedRun.of(part.log.run, where, branched), newest.version, batches)
