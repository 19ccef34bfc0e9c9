"""`Ancestry`: the runs that a run's weights come from, back to the first. `Branches`: those that go on from it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from schemas.batches import BatchSealed
from schemas.errors import RunNotFound, SlimeEventsError
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.analysis.model.lookup import LogPart, Wanted, record_events
from slime_events.analysis.model.records import Run, folded
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, branched_of, is_archive, open_archive, open_run
from storage.archive.log import ArchivedLog
from storage.log import Recorded
from storage.object_store import ObjectFolder


class VersionRange(msgspec.Struct, frozen=True, kw_only=True):
    """Weight versions `first` to `last`, both included, that `run` has made."""

    run: str
    first: int
    last: int

    @property
    def count(self) -> int:
        """Number of versions."""
        return self.last - self.first + 1


class JoinedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an ancestry. where: what it is opened with.

    parent, version, position: of a branch: the run it goes on from, at which version and position of its log. follows:
    it is trained on its parent's rollouts.
    """

    run: str
    where: str
    parent: str | None = None
    version: int | None = None
    position: int | None = None
    follows: bool = False

    @classmethod
    def of(cls, run: str, where: str, join: Branched | None) -> JoinedRun:
        """join: where the run goes on from."""
        if join is None:
            return cls(run=run, where=where)
        return cls(
            run=run, where=where, parent=join.run, version=join.version, position=join.position, follows=join.follows
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Ancestor(LogPart):
    """One of the runs, with the part of its log that belongs to the ancestry.

    until: its first step that does not.
    """

    opened: OpenedRun
    branched: Branched | None
    until: int = sys.maxsize

    @property
    def run(self) -> str:
        """Its name."""
        return self.opened.run

    @property
    def first_step(self) -> int:
        """Its first own step."""
        return self.branched.version if self.branched else 0

    @property
    def follows(self) -> bool:
        """Whether its rollouts are its parent's."""
        return self.branched is not None and self.branched.follows

    def has(self, step: int) -> bool:
        """Whether a step of the ancestry is this run's own."""
        return self.first_step <= step < self.until

    async def last_sealed(self) -> int:
        """Its last step within the ancestry that has a batch; below its first where none has."""
        last = await self.newest(BatchSealed)
        return min(last.step, self.until - 1) if last else self.first_step - 1


@contextlib.asynccontextmanager
async def open_ancestry(opened: OpenedRun) -> AsyncIterator[Ancestry]:
    """The ancestry of a run. Parents are opened when they are asked for, and closed with it; the run itself is not."""
    async with contextlib.AsyncExitStack() as parents:
        yield Ancestry(Ancestor(opened.log, opened=opened, branched=await branched_of(opened.log)), parents)


class Ancestry:
    """Made by `open_ancestry`. own: the run that was asked for."""

    def __init__(self, own: Ancestor, parents: contextlib.AsyncExitStack) -> None:
        self.own, self._runs, self._parents = own, [own], parents

    async def parent(self, ancestor: Ancestor) -> Ancestor | None:
        """The run that `ancestor` goes on from. Raises RunNotFound where that has gone."""
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
                f"run {ancestor.run} goes on from version {branched.version} of run {branched.run}, which was at "
                f"{branched.where}: {error}. Put it, or its archive, back there to look across the join"
            ) from error
        # Rollouts of a run that is followed belong to the ancestry wherever they stand in its log.
        end = sys.maxsize if branched.follows else branched.position
        own = await branched_of(opened.log)
        self._runs.append(Ancestor(opened.log, end, opened=opened, branched=own, until=branched.version))
        return self._runs[-1]

    async def all(self) -> AsyncIterator[Ancestor]:
        """From the run itself back to the first."""
        ancestor: Ancestor | None = self.own
        while ancestor is not None:
            yield ancestor
            ancestor = await self.parent(ancestor)

    async def records(self, ancestor: Ancestor, **of: Iterable[object]) -> Run:
        """The records of samples, groups, steps and versions (see `record_events`), of their last events each: those of
        `ancestor`, and what its log lacks of the runs that it follows. `Entry.run` says whose an event is.
        """
        wanted = record_events(**of)  # type: ignore[arg-type]
        events: dict[Wanted, Recorded] = {}
        part: Ancestor | None = ancestor
        while part is not None:
            events |= await part.last_of_each([key for key in wanted if key not in events])
            part = await self.parent(part) if part.follows else None
        return folded(ancestor.run, (events[key] for key in wanted if key in events))

    async def of_step(self, step: int) -> Ancestor:
        """The run that made a step."""
        async for ancestor in self.all():
            if step >= ancestor.first_step:
                return ancestor
        raise RunNotFound(f"there is no step {step}: steps begin with 0")

    async def of_version(self, run: str, version: int) -> tuple[Ancestor, str]:
        """The run whose log has what `run` calls that version, and the name of the one that made it."""
        for ancestor in self._runs:
            if ancestor.run == run and version > ancestor.until:
                return ancestor, run
        # A branch repeats the version that it begins with, so its parent is not opened for that one.
        return await self.of_step(version), self.versions(version, version)[0].run

    def of_run(self, run: str) -> Ancestor:
        """One of those that have been opened."""
        return next(ancestor for ancestor in self._runs if ancestor.run == run)

    async def step_of(self, group: str, origin: Ancestor, decided: int) -> int | None:
        """The step whose batch has a group that `origin` decided on at position `decided`; None for none.

        Looks no further back than that decision, and along the runs that follow `origin`.
        """
        async for ancestor in self.all():
            first, last = ancestor.first_step, await ancestor.last_sealed()
            if ancestor is origin:
                return await ancestor.step_of(group, first, last, decided)
            if ancestor.follows and (step := await ancestor.step_of(group, first, last)) is not None:
                return step
        raise RunNotFound(f"run {origin.run} is none of the runs that {self.own.run} comes from")

    async def newest(self) -> int:
        """The newest version of the run itself: committed, or published at its beginning; -1 before there is one."""
        last = await self.own.newest(StepCommitted) or await self.own.newest(WeightsPublished)
        return last.version if last else -1

    def runs(self) -> tuple[JoinedRun, ...]:
        """Those that have been opened, the oldest first."""
        return tuple(JoinedRun.of(one.run, one.opened.where, one.branched) for one in reversed(self._runs))

    def versions(self, first: int, last: int) -> tuple[VersionRange, ...]:
        """Versions `first` to `last` by the run that made them, the oldest first; of an unopened parent by its name."""
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
    """newest: its newest version. batches: where it is trained on its parent's rollouts, the step of each sample."""

    run: JoinedRun
    newest: int
    batches: Mapping[str, int]


class Branches(NamedTuple):
    """The runs that branched off from a run, and which of their versions come of a version or a sample of it.

    A run does not know its branches: they are looked for among its neighbours, in the same folder of runs, or under the
    same URL of archives. A branch whose first weights are not the run's own is one of another run of that name.

    known: each after its parent. notes: on neighbours that could not be looked into, a sentence each.
    """

    known: tuple[Branch, ...] = ()
    notes: tuple[str, ...] = ()

    def of_sample(self, run: str, sample: str, into: int | None) -> tuple[VersionRange, ...]:
        """Versions that come of a sample of `run`. into: the version there that it was trained into, if it was."""
        first = {} if into is None else {run: into}
        for branch in self.known:
            step = branch.batches.get(sample)
            if step is not None and branch.run.parent == run:
                first[branch.run.run] = step + 1
        return self.of_versions(first)

    def of_versions(self, first: Mapping[str, int]) -> tuple[VersionRange, ...]:
        """Versions that come of these: by run, the first that it has made, or that they have in common."""
        reached = dict(first)
        for branch in self.known:
            parents, join = reached.get(branch.run.parent or ""), branch.run.version or 0
            if branch.run.run not in reached and parents is not None and join >= parents:
                reached[branch.run.run] = join + 1
        return tuple(
            VersionRange(run=branch.run.run, first=reached[branch.run.run], last=branch.newest)
            for branch in self.known
            if branch.newest >= reached.get(branch.run.run, branch.newest + 1)
        )


async def find_branches(opened: OpenedRun) -> Branches:
    """Branches of an opened run, and theirs. A neighbour that cannot be looked into is named in the notes."""
    joined: dict[str, tuple[LogPart, str, Branched]] = {}
    notes: list[str] = []
    for where in await asyncio.to_thread(_neighbours, opened):
        try:
            log = await asyncio.to_thread(_archived, where)
            branched = await branched_of(log)
        except SlimeEventsError as error:
            notes.append(f"{where} may be a branch, and cannot be looked into: {str(error).splitlines()[0]}")
            continue
        if log.run not in (opened.run, *joined) and branched is not None:
            joined[log.run] = LogPart(log), str(where), branched
    parents, known = [LogPart(opened.log)], list[Branch]()
    for parent in parents:  # each branch becomes one
        for part, where, branched in joined.values():
            if branched.run == parent.log.run:
                begun = (await parent.records(versions=[branched.version])).version(branched.version)
                if begun.digest == branched.weights_digest:
                    parents.append(part)
                    known.append(await _branch(part, where, branched))
    return Branches(tuple(known), tuple(notes))


def _neighbours(opened: OpenedRun) -> list[Path | str]:
    """Folders of other runs, or URLs of other archives."""
    if opened.folder is not None:
        own = opened.folder.path.resolve()
        runs = sorted(settings.parent for settings in own.parent.glob("*/settings.toml"))
        return [run for run in runs if run.resolve() != own]
    if not is_archive(opened.where):
        return []
    url, _, own_name = opened.where.rstrip("/").rpartition("/")
    return [f"{url}/{name}" for name in ObjectFolder(url).folders() if name != own_name]


def _archived(where: Path | str) -> ArchivedLog:
    """What is archived of it by now: no server is started for a neighbour. Raises RunNotFound."""
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
