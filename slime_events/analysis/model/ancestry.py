"""`Past`: the runs that a run's weights come from: itself, the run that it branched from, and so on to the first."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

import msgspec

from schemas.errors import RunNotFound
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from schemas.weights import WeightsPublished
from slime_events.core.run.run_reader import OpenedRun, branched_of, open_run
from storage.log import Recorded


class Versions(msgspec.Struct, frozen=True, kw_only=True):
    """Weight versions `first` to `last`, both counted, that `run` has made."""

    run: str
    first: int
    last: int

    @property
    def count(self) -> int:
        """How many."""
        return self.last - self.first + 1


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run that the lineage goes through, the oldest first. where: what it is opened with.

    parent, version, position: of a branch: the run it goes on from, at which version and position of its log. follows:
    it is trained on its parent's rollouts.
    """

    run: str
    where: str
    parent: str | None = None
    version: int | None = None
    position: int | None = None
    follows: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One of the runs. until: its first step that is no more of this past; None for the run that was asked for. end:
    the last position of its log that is; None for all of it.
    """

    opened: OpenedRun
    branched: Branched | None
    until: int | None = None
    end: int | None = None

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
        """Whether a step of this past is this run's own."""
        return step >= self.first_step and (self.until is None or step < self.until)

    async def last_of_each(self, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Recorded]:
        """The last event of each (type, entity) that has any within this past."""
        subjects = {f"slime.{self.run}.{event_type}.{entity}": (event_type, entity) for event_type, entity in wanted}
        found = await self.opened.log.last_of_each(list(subjects))
        return {
            subjects[subject]: one for subject, one in found.items() if self.end is None or one.position <= self.end
        }

    async def of_type(self, event_type: str) -> AsyncIterator[Recorded]:
        """All events of one type within this past, in order."""
        async for recorded in self.of_entity(event_type, "*"):
            yield recorded

    async def of_entity(self, event_type: str, entity: str) -> AsyncIterator[Recorded]:
        """All events of one type about one entity within this past, in order."""
        async for recorded in self.opened.log.read(1, f"slime.{self.run}.{event_type}.{entity}"):
            if self.end is not None and recorded.position > self.end:
                return
            yield recorded


class Past:
    """An async context. Parents are opened when they are asked for, and closed with it; the run itself is not."""

    def __init__(self, opened: OpenedRun) -> None:
        self._opened = opened
        self._parts: list[Part] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Past:
        self._parts = [Part(self._opened, await branched_of(self._opened.log))]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def own(self) -> Part:
        """The run that was asked for."""
        return self._parts[0]

    async def parent(self, part: Part) -> Part | None:
        """The run that `part` goes on from. Raises RunNotFound where it is not to be found any more."""
        place = self._parts.index(part)
        if place + 1 < len(self._parts):
            return self._parts[place + 1]
        branched = part.branched
        if branched is None:
            return None
        try:
            opened = await self._stack.enter_async_context(open_run(branched.where))
        except RunNotFound as error:
            raise RunNotFound(
                f"run {part.run} goes on from version {branched.version} of run {branched.run}, which was at "
                f"{branched.where}: {error}. Put it, or its archive, back there to look across the join"
            ) from error
        # Rollouts of a run that is followed are this past's wherever they stand in its log.
        end = None if branched.follows else branched.position
        self._parts.append(Part(opened, await branched_of(opened.log), branched.version, end))
        return self._parts[-1]

    async def parts(self) -> AsyncIterator[Part]:
        """From the run itself back to the first."""
        part: Part | None = self.own
        while part is not None:
            yield part
            part = await self.parent(part)

    async def of_step(self, step: int) -> Part:
        """The run that made a step of this past."""
        async for part in self.parts():
            if step >= part.first_step:
                return part
        raise RunNotFound(f"there is no step {step}: steps begin with 0")

    async def of_version(self, run: str, version: int) -> tuple[Part, str]:
        """The run whose log has what `run` calls that version, and the name of the one that made it."""
        for part in self._parts:
            if part.run == run and part.until is not None and version > part.until:
                return part, run
        # A branch says the version that it begins with again, so its parent is not opened for that one.
        return await self.of_step(version), self.versions(version, version)[0].run

    async def newest(self) -> int:
        """The newest version of the run itself: committed, or published at its beginning; -1 before there is one."""
        for event_type in ("step.committed", "weights.published"):
            last = await self.own.opened.log.last(of_type(self.own.run, event_type))
            if last is not None:
                event = last.envelope.event
                assert isinstance(event, StepCommitted | WeightsPublished)
                return event.version
        return -1

    def runs(self) -> tuple[Run, ...]:
        """Those that have been opened, and the names of all that are named, the oldest first."""
        return tuple(reversed([_run(part) for part in self._parts]))

    def versions(self, first: int, last: int) -> tuple[Versions, ...]:
        """Versions `first` to `last` by the run that made them, the oldest first; of an unopened parent by its name."""
        found: list[Versions] = []
        for part in self._parts:
            # A branch says its first version again; it is its parent's.
            begin = part.first_step + 1 if part.branched else 0
            if last >= max(first, begin):
                found.append(Versions(run=part.run, first=max(first, begin), last=last))
            last = min(last, begin - 1)
        oldest = self._parts[-1].branched
        if oldest is not None and last >= first:
            found.append(Versions(run=oldest.run, first=first, last=last))
        return tuple(reversed(found))


def _run(part: Part) -> Run:
    branched = part.branched
    if branched is None:
        return Run(run=part.run, where=part.opened.where)
    return Run(
        run=part.run,
        where=part.opened.where,
        parent=branched.run,
        version=branched.version,
        position=branched.position,
        follows=branched.follows,
    )
