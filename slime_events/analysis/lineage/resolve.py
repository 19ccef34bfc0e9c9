"""`lineage`: a question about a run, answered. `samples_in_lineage`: all that a version was trained on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from schemas.batches import BatchSealed
from schemas.errors import RunNotFound
from schemas.ids import INBOX, group_of
from schemas.prompts import PromptSubmitted, Source
from slime_events.analysis import model
from slime_events.analysis.lineage.collect import Collector, Members, distinct, make_step, make_version
from slime_events.analysis.lineage.lineage import Asked, Kind, Lineage, Step, Version
from slime_events.analysis.model.ancestry import Ancestor, Ancestry, Branches, find_branches, open_ancestry
from slime_events.analysis.model.lookup import wanted
from slime_events.core.run.run_reader import OpenedRun

NEWEST = "newest"
"""The value of a question about the newest version that there is."""
NOT_IN_A_BATCH = "in no batch of this lineage"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """path: of a file, its name, or its URL; `inbox` for what was sent. line: from 1, or the key that was sent with it;
    None for all.
    """

    path: str
    line: str | None = None

    @classmethod
    def of(cls, text: str) -> SourceLine:
        """`FILE`, `FILE:LINE`, or `inbox:KEY`."""
        path, colon, line = text.rpartition(":")
        if colon and (line.isdigit() or path == INBOX):
            return cls(path, line)
        return cls(text)

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"

    def matches(self, source: Source) -> bool:
        """Whether a prompt of that source is meant: the whole path, or the end of it from a / on."""
        have, want = PurePosixPath(source.path).parts, PurePosixPath(self.path).parts
        if self.path != source.path and have[-len(want) :] != want:
            return False
        return self.line is None or self.line == (source.key if source.path == INBOX else str(source.line))


async def lineage(opened: OpenedRun, asked: Asked) -> Lineage:
    """The answer. Raises RunNotFound for what is not there, InvalidValue for a question that is none, StorageError."""
    async with open_ancestry(opened) as ancestry:
        resolver = _Resolver(ancestry, asked, await ancestry.newest(), await find_branches(opened))
        match asked.kind:
            case Kind.VERSION:
                return await resolver.of_version(resolver.newest if asked.value == NEWEST else int(asked.value))
            case Kind.STEP:
                return await resolver.of_step(int(asked.value))
            case Kind.SAMPLE:
                return await resolver.of_group(group_of(asked.value), asked.value)
            case Kind.GROUP:
                return await resolver.of_group(asked.value)
            case Kind.SOURCE:
                return await resolver.of_source(SourceLine.of(asked.value))


async def samples_in_lineage(opened: OpenedRun, version: int) -> set[str]:
    """The ids of all samples of all steps that `version` comes of, across the joins of branches.

    Raises RunNotFound for a run that the lineage goes through and is gone, StorageError.
    """
    async with open_ancestry(opened) as ancestry:
        batches = await Collector(ancestry, version, Branches()).batches(range(version))
    return {sample for _, step in batches.values() for sample in step.sealed.event.samples}


class _Resolver:
    def __init__(self, ancestry: Ancestry, asked: Asked, newest: int, branches: Branches) -> None:
        self._ancestry, self.newest, self._branches = ancestry, newest, branches
        self._asked = msgspec.structs.replace(asked, value=str(newest)) if asked.value == NEWEST else asked
        self._collector = Collector(ancestry, newest, branches)

    async def of_version(self, version: int) -> Lineage:
        if not 0 <= version <= self.newest:
            run = self._ancestry.own.run
            raise RunNotFound(f"run {run} has no weight version {version}: its newest is {self.newest}")
        return await self._of_steps(version - 1, version)

    async def of_step(self, step: int) -> Lineage:
        answer = await self._of_steps(step, None)
        if not answer.steps:
            run, last = self._ancestry.own.run, await self._ancestry.own.last_sealed()
            raise RunNotFound(f"run {run} has no step {step}: the last one that is sealed is {last}")
        return answer

    async def _of_steps(self, last: int, version: int | None) -> Lineage:
        """Of step `last` and so many before it as were asked for."""
        depth = self._asked.depth or last + 1
        batches = await self._collector.batches(range(max(0, last - depth + 1), last + 1))
        steps: list[Step] = []
        members = Members()
        for _, (ancestor, record) in sorted(batches.items(), reverse=True):
            steps.append(make_step(record))
            members += await self._collector.of_batch(ancestor, record)
        top = version if version is not None else (last + 1 if steps and steps[0].committed_at else last)
        return await self._answer(
            versions=[(self._ancestry.own.run, version) for version in (top, *(step.parent for step in steps))],
            about=top,
            steps=tuple(steps),
            members=members,
        )

    async def of_group(self, group: str, only: str | None = None) -> Lineage:
        """One group, or one sample of it."""
        origin = await self._origin(group)
        verdict = (await self._ancestry.records(origin, groups=[group])).groups[group].verdict
        step = await self._ancestry.step_of(group, origin, verdict.position) if verdict else None
        return await self._of_members(await self._collector.of_groups(origin, {group: step}, only), distinct([step]))

    async def of_source(self, source: SourceLine) -> Lineage:
        """All groups of a file, or of a line of it. Reads all prompts and batches."""
        groups: dict[Ancestor, list[str]] = {}
        async for ancestor in self._ancestry.all():
            prompts = [recorded.envelope.event async for recorded in ancestor.of_type(PromptSubmitted)]
            groups[ancestor] = [p.group for p in prompts if isinstance(p, PromptSubmitted) and source.matches(p.source)]
        if not any(groups.values()):
            run = self._ancestry.own.run
            raise RunNotFound(
                f"no prompt of run {run} came from {source}: `slime-events query {run} "
                '"SELECT DISTINCT source FROM prompts"` lists what they came from'
            )
        members, steps = Members(), set[int]()
        for origin, names in groups.items():
            step_of = await self._steps_of(origin, names)
            members += await self._collector.of_groups(origin, {name: step_of.get(name) for name in names})
            steps |= set(step_of.values())
        return await self._of_members(members, sorted(steps))

    async def _steps_of(self, origin: Ancestor, groups: Collection[str]) -> dict[str, int]:
        """The step that has each of `origin`'s groups, where one has."""
        names, steps = frozenset(groups), dict[str, int]()
        async for ancestor in self._ancestry.all():
            if ancestor is origin or ancestor.follows:
                async for recorded in ancestor.of_type(BatchSealed):
                    event = recorded.envelope.event
                    if isinstance(event, BatchSealed) and ancestor.has(event.step):
                        steps |= dict.fromkeys(names.intersection(event.groups), event.step)
            if ancestor is origin:
                break
        return steps

    async def _origin(self, group: str) -> Ancestor:
        """The newest run of the ancestry that has the group's prompt."""
        async for ancestor in self._ancestry.all():
            if await ancestor.last_of_each(wanted((PromptSubmitted,), [group])):
                return ancestor
        run = self._ancestry.own.run
        raise RunNotFound(f"run {run} has no group {group!r}: `slime-events show {run} --step N` lists those of a step")

    async def _of_members(self, members: Members, steps: Sequence[int]) -> Lineage:
        batches = await self._collector.batches(steps)
        run = self._ancestry.own.run
        touched = {(sample.run, version) for sample in members.samples for version in sample.made_by}
        touched |= {(run, sample.trained_into) for sample in members.samples if sample.trained_into is not None}
        return await self._answer(
            versions=sorted(touched),
            about=None,
            steps=tuple(make_step(record) for _, (_, record) in sorted(batches.items())),
            members=members,
            notes=[f"{group.group}: {NOT_IN_A_BATCH}" for group in members.groups if group.step is None],
        )

    async def _answer(
        self,
        *,
        versions: Sequence[tuple[str, int]],
        about: int | None,
        steps: tuple[Step, ...],
        members: Members,
        notes: Sequence[str] = (),
    ) -> Lineage:
        """about: the version that was asked about."""
        made, branches, run = await self._versions(versions), self._branches, self._ancestry.own.run
        later = () if about is None else self._ancestry.versions(about + 1, self.newest)
        return Lineage(
            run=run,
            asked=self._asked,
            newest=self.newest,
            runs=self._ancestry.runs(),
            line=self._ancestry.versions(0, self.newest),
            versions=made,
            ancestors=self._ancestry.versions(0, about - 1) if about else (),
            descendants=() if about is None else later + branches.of_version(run, about),
            branches=tuple(branch.run for branch in branches.known),
            steps=steps,
            groups=members.groups,
            samples=members.samples,
            notes=(*notes, *branches.notes),
        )

    async def _versions(self, named: Iterable[tuple[str, int]]) -> tuple[Version, ...]:
        """named: a run, and what it calls the version."""
        makers: dict[Ancestor, dict[int, str]] = {}
        for run, version in named:
            ancestor, maker = await self._ancestry.of_version(run, version)
            makers.setdefault(ancestor, {})[version] = maker
        made = []
        for ancestor, versions in makers.items():
            records = model.folded(ancestor.run, await ancestor.last_events(versions=versions))
            made += [make_version(records.version(version), maker) for version, maker in versions.items()]
        return tuple(sorted(made, key=lambda version: (-version.version, version.run)))


def to_json(answer: Lineage) -> bytes:
    """The whole answer, indented."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=1)
