"""`lineage`: what is asked about a run, as facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from schemas.errors import RunNotFound
from schemas.event import type_of
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from slime_events.analysis.lineage.branches import Branches, find_branches
from slime_events.analysis.lineage.collect import Collector, Made, some
from slime_events.analysis.lineage.event_index import Reading
from slime_events.analysis.lineage.facts import Asked, Group, Kind, Lineage, Sample, Step, Version
from slime_events.analysis.lineage.make import OF_GROUP, OF_VERSION, step_fact, version_fact
from slime_events.analysis.lineage.source import SourceLine, find_groups, steps_of_groups
from slime_events.analysis.model.ancestry import Part, Past
from slime_events.core.run.run_reader import OpenedRun

NEWEST = "newest"
"""The value of a question about the newest version that there is."""
NOT_IN_A_BATCH = "no batch of this past has it"


async def lineage(opened: OpenedRun, asked: Asked) -> Lineage:
    """The answer. Raises RunNotFound for what is not there, InvalidValue for a question that is none, StorageError."""
    async with Past(opened) as past:
        answer = _Answer(past, asked, await past.newest(), await find_branches(opened))
        match asked.kind:
            case Kind.VERSION:
                return await answer.of_version(answer.newest if asked.value == NEWEST else int(asked.value))
            case Kind.STEP:
                return await answer.of_step(int(asked.value))
            case Kind.SAMPLE:
                return await answer.of_group(group_of(asked.value), asked.value)
            case Kind.GROUP:
                return await answer.of_group(asked.value)
            case Kind.SOURCE:
                return await answer.of_source(SourceLine.of(asked.value))


class _Answer:
    def __init__(self, past: Past, asked: Asked, newest: int, branches: Branches) -> None:
        self._past, self.newest, self._branches = past, newest, branches
        self._asked = msgspec.structs.replace(asked, value=str(newest)) if asked.value == NEWEST else asked
        self._reading = Reading(past)
        self._collector = Collector(self._reading, newest, branches)

    async def of_version(self, version: int) -> Lineage:
        if not 0 <= version <= self.newest:
            raise RunNotFound(f"run {self._past.own.run} has no weight version {version}: its newest is {self.newest}")
        return await self._of_steps(version - 1, version)

    async def of_step(self, step: int) -> Lineage:
        found = await self._of_steps(step, None)
        if not found.steps:
            sealed = await self._reading.newest_sealed(self._past.own)
            raise RunNotFound(f"run {self._past.own.run} has no step {step}: the last one that is sealed is {sealed}")
        return found

    async def _of_steps(self, last: int, version: int | None) -> Lineage:
        """Of step `last` and so many before it as were asked for."""
        depth = self._asked.depth or last + 1
        wanted = range(max(0, last - depth + 1), last + 1)
        batches = await self._reading.batches(wanted)
        steps: list[Step] = []
        groups: list[Group] = []
        samples: list[Sample] = []
        for step in reversed(wanted):
            if step in batches:
                part, said = batches[step]
                fact = step_fact(step, part.run, said)
                made = await self._collector.of_batch(part, fact, said)
                steps.append(fact)
                groups += made.groups
                samples += made.samples
        top = version if version is not None else (last + 1 if steps and steps[0].committed_at else last)
        return await self._with(
            versions=[(self._past.own.run, version) for version in (top, *(step.parent for step in steps))],
            about=top,
            steps=tuple(steps),
            made=Made(tuple(groups), tuple(samples)),
        )

    async def of_group(self, group: str, only: str | None = None) -> Lineage:
        """One group, or one sample of it."""
        part = await self._origin(group)
        about = await self._reading.said(part, OF_GROUP, [group])
        verdict = about.recorded(GroupAccepted, group) or about.recorded(GroupRejected, group)
        step = await self._reading.step_of(group, part, verdict.position) if verdict else None
        made = await self._collector.of_groups(part, {group: step}, about, only)
        return await self._of_made(made, some([step]))

    async def of_source(self, source: SourceLine) -> Lineage:
        """All groups of a file, or of a line of it."""
        found = await find_groups(self._past, source)
        if not any(found.values()):
            raise RunNotFound(
                f"no prompt of run {self._past.own.run} came from {source}: `slime-events query {self._past.own.run} "
                '"SELECT DISTINCT source FROM prompts"` lists what they came from'
            )
        made = Made((), ())
        steps: set[int] = set()
        for part, groups in found.items():
            where = await steps_of_groups(self._past, part, groups)
            about = await self._reading.said(part, OF_GROUP, groups)
            more = await self._collector.of_groups(part, {group: where.get(group) for group in groups}, about)
            made = Made(made.groups + more.groups, made.samples + more.samples)
            steps |= set(where.values())
        return await self._of_made(made, sorted(steps))

    async def _origin(self, group: str) -> Part:
        """The newest run of the past that has the group's prompt."""
        async for part in self._past.parts():
            if await part.last_of_each([(type_of(PromptSubmitted), group)]):
                return part
        run = self._past.own.run
        raise RunNotFound(f"run {run} has no group {group!r}: `slime-events show {run} --step N` lists those of a step")

    async def _of_made(self, made: Made, steps: Sequence[int]) -> Lineage:
        batches = await self._reading.batches(steps)
        facts = tuple(step_fact(step, part.run, said) for step, (part, said) in sorted(batches.items()))
        run = self._past.own.run
        touched = {(sample.run, version) for sample in made.samples for version in sample.made_by}
        touched |= {(run, sample.trained_into) for sample in made.samples if sample.trained_into is not None}
        notes = [f"{group.group}: {NOT_IN_A_BATCH}" for group in made.groups if group.step is None]
        return await self._with(versions=sorted(touched), about=None, steps=facts, made=made, notes=notes)

    async def _with(
        self,
        *,
        versions: Sequence[tuple[str, int]],
        about: int | None,
        steps: tuple[Step, ...],
        made: Made,
        notes: Sequence[str] = (),
    ) -> Lineage:
        """about: the version that was asked about."""
        facts, branches, run = await self._versions(versions), self._branches, self._past.own.run
        come_of = () if about is None else self._past.versions(about + 1, self.newest) + branches.of_version(run, about)
        return Lineage(
            run=run,
            asked=self._asked,
            newest=self.newest,
            runs=self._past.runs(),
            line=self._past.versions(0, self.newest),
            versions=facts,
            ancestors=self._past.versions(0, about - 1) if about else (),
            descendants=come_of,
            branches=tuple(branch.run for branch in branches.found),
            steps=steps,
            groups=made.groups,
            samples=made.samples,
            notes=(*notes, *branches.notes),
        )

    async def _versions(self, named: Iterable[tuple[str, int]]) -> tuple[Version, ...]:
        """named: a run, and what it calls the version."""
        makers: dict[str, tuple[Part, dict[int, str]]] = {}
        for run, version in named:
            part, maker = await self._past.of_version(run, version)
            makers.setdefault(part.run, (part, {}))[1][version] = maker
        facts = []
        for part, versions in makers.values():
            steps = (str(version - 1) for version in versions)  # what made it, where it was not published
            said = await self._reading.said(part, OF_VERSION, [*map(str, versions), *steps])
            facts += [version_fact(version, maker, said) for version, maker in versions.items()]
        return tuple(sorted(facts, key=lambda fact: (-fact.version, fact.run)))


def to_json(answer: Lineage) -> bytes:
    """The whole answer, indented."""
    return msgspec.json.format(msgspec.json.encode(answer), indent=1)
