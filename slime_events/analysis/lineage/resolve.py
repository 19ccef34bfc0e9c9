"""`lineage`: answers a question about a run. `samples_in_lineage`: all samples that a version was trained on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple

import msgspec

from schemas.batches import BatchSealed
from schemas.commands import CommandGiven
from schemas.doc import doc
from schemas.errors import RunNotFound
from schemas.event import Purpose, type_of
from schemas.ids import INBOX, group_of, requested_sample, sample_id
from schemas.prompts import PromptSubmitted, Source
from schemas.rollouts import Maker, RolloutProgressed, WeightSpan
from schemas.subjects import of_type
from schemas.trainers import Fidelity, TrainerRestored
from slime_events import model
from slime_events.analysis.lineage.advantages import TrainedSample, make_advantages
from slime_events.analysis.lineage.lineage import (
    BatchPart,
    Command,
    Group,
    Kind,
    Lineage,
    LineageQuery,
    Sample,
    Step,
    Version,
    mask_of,
)
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.tokens.trajectory import merge_spans
from slime_events.core.training.batch_columns import LOSS_MASKS, BatchCredit, BatchMasks
from slime_events.core.training.datums import unpack_datums
from slime_events.model.advantages import has_kl_penalty
from slime_events.model.agent_session import AgentSession, read_sessions
from slime_events.model.ancestry import Ancestor, Ancestry, Branches, find_branches, open_ancestry
from slime_events.model.lookup import event_keys

NEWEST = "newest"
"""Value of a question about the newest version."""


class SourceLine(NamedTuple):
    """A line of a prompt file, or a prompt from outside."""

    path: Annotated[str, doc("name, path or URL of a file; `inbox` for prompts from outside")]
    line: Annotated[str | None, doc("line from 1, or the sender's key; None: all")] = None

    @classmethod
    def of(cls, text: str) -> SourceLine:
        """Parse `FILE`, `FILE:LINE`, or `inbox:KEY`."""
        path, colon, line = text.rpartition(":")
        if colon and (line.isdigit() or path == INBOX):
            return cls(path, line)
        return cls(text)

    def matches(self, source: Source) -> bool:
        """Return whether a prompt has this source. A path matches as a whole, or by its last parts."""
        path_parts, suffix = PurePosixPath(source.path).parts, PurePosixPath(self.path).parts
        if self.path != source.path and path_parts[-len(suffix) :] != suffix:
            return False
        return self.line is None or self.line == (source.key if source.path == INBOX else str(source.line))


async def lineage(opened: OpenedRun, question: LineageQuery) -> Lineage:
    """Answer a question. Raises RunNotFound if its subject does not exist, InvalidValue if it is malformed,
    StorageError.
    """
    async with open_ancestry(opened) as ancestry:
        newest = await ancestry.newest()
        if question.kind is Kind.VERSION and question.value == NEWEST:
            question = msgspec.structs.replace(question, value=str(newest))
        resolver = _Resolver(ancestry, question, newest, await find_branches(opened))
        match question.kind:
            case Kind.VERSION:
                return await resolver.of_version(int(question.value))
            case Kind.STEP:
                return await resolver.of_step(int(question.value))
            case Kind.SAMPLE:
                return await resolver.of_group(group_of(question.value), question.value)
            case Kind.GROUP:
                return await resolver.of_group(question.value)
            case Kind.SOURCE:
                return await resolver.of_source(SourceLine.of(question.value))


async def samples_in_lineage(opened: OpenedRun, version: int) -> set[str]:
    """Return the ids of all samples of all steps from which `version` derives, across the joins of branches.

    Raises RunNotFound if a run of the lineage is gone; StorageError.
    """
    async with open_ancestry(opened) as ancestry:
        batches = await _batches(ancestry, range(version))
    return {sample for _, step in batches for sample in step.sealed.event.samples}


async def _batches(ancestry: Ancestry, steps: Iterable[int]) -> list[tuple[Ancestor, model.Step]]:
    """Return the sealed steps among these, in order, with the run that made each."""
    by_run: dict[Ancestor, list[int]] = {}
    for step in sorted(steps):
        by_run.setdefault(await ancestry.of_step(step), []).append(step)
    batches = [(run, record) for run, own in by_run.items() for record in (await run.records(steps=own)).steps.values()]
    return sorted(batches, key=lambda batch: batch[1].step)


class _Resolver:
    """Collects the parts of one answer. newest: newest version of the queried run. branches: runs that branched off
    from it.
    """

    def __init__(self, ancestry: Ancestry, question: LineageQuery, newest: int, branches: Branches) -> None:
        self._ancestry, self._question, self._newest, self._branches = ancestry, question, newest, branches
        self._run = ancestry.own.run
        self._steps, self._groups, self._samples = list[Step](), list[Group](), list[Sample]()
        self._sessions = dict[tuple[str, str], AgentSession]()
        self._recredited = set[int]()

    async def of_version(self, version: int) -> Lineage:
        if not 0 <= version <= self._newest:
            raise RunNotFound(f"run {self._run} has no weight version {version}: its newest is {self._newest}")
        return await self._of_steps(version - 1, version)

    async def of_step(self, step: int) -> Lineage:
        answer = await self._of_steps(step, None)
        if not answer.steps:
            last = await self._ancestry.own.last_sealed()
            raise RunNotFound(f"run {self._run} has no step {step}: the last sealed step is {last}")
        return answer

    async def _of_steps(self, last: int, version: int | None) -> Lineage:
        """Answer about step `last` and the steps before it, to the question's depth."""
        depth = self._question.depth or last + 1
        for ancestor, record in reversed(await _batches(self._ancestry, range(max(0, last - depth + 1), last + 1))):
            commands = await _commands(ancestor, record.sealed.event.commands)
            self._steps.append(Step.of(record, commands))
            await self._collect_batch(ancestor, record)
            await self._collect_calls(ancestor, [name for command in commands for name in command.samples])
        steps = self._steps
        top = version if version is not None else (last + 1 if steps and steps[0].committed_at else last)
        return await self._answer([(self._run, version) for version in (top, *(step.parent for step in steps))], top)

    async def of_group(self, group: str, only: str | None = None) -> Lineage:
        origin = await self._origin(group)
        verdict = (await self._ancestry.records(origin, groups=[group])).groups[group].verdict
        step = await self._ancestry.step_of(group, origin, verdict.position) if verdict else None
        await self._collect_groups(origin, {group: step}, only)
        return await self._of_samples()

    async def of_source(self, source: SourceLine) -> Lineage:
        """Answer about all groups of a file, or of a line of it. Reads all prompts and batches."""
        groups: dict[Ancestor, list[str]] = {}
        async for ancestor in self._ancestry.all():
            prompts = ancestor.events(PromptSubmitted)
            groups[ancestor] = [prompt.group async for prompt in prompts if source.matches(prompt.source)]
        if not any(groups.values()):
            raise RunNotFound(
                f"no prompt of run {self._run} came from {self._question.value}. To list its sources, run "
                f'`slime-events query {self._run} "SELECT DISTINCT source FROM prompts"`'
            )
        for origin, names in groups.items():
            step_of = await self._steps_of(origin, names)
            await self._collect_groups(origin, {name: step_of.get(name) for name in names})
        return await self._of_samples()

    async def _steps_of(self, origin: Ancestor, groups: Collection[str]) -> dict[str, int]:
        """Return the step that has each of `origin`'s groups, if any has."""
        names, steps = frozenset(groups), dict[str, int]()
        async for ancestor in self._ancestry.all():
            if ancestor is origin or ancestor.follows:
                async for batch in ancestor.events(BatchSealed):
                    if ancestor.has(batch.step):
                        steps |= dict.fromkeys(names.intersection(batch.groups), batch.step)
            if ancestor is origin:
                break
        return steps

    async def _origin(self, group: str) -> Ancestor:
        """Return the newest run of the ancestry that has the group's prompt."""
        async for ancestor in self._ancestry.all():
            if await ancestor.last_of_each(event_keys((PromptSubmitted,), [group])):
                return ancestor
        raise RunNotFound(
            f"run {self._run} has no group {group!r}. `slime-events show {self._run} --step N` lists groups"
        )

    async def _of_samples(self) -> Lineage:
        """Return the answer about the collected samples."""
        touched = {(sample.run, version) for sample in self._samples for version in sample.made_by}
        touched |= {(self._run, sample.trained_into) for sample in self._samples if sample.trained_into is not None}
        self._steps = list({step.step: step for step in sorted(self._steps, key=lambda step: step.step)}.values())
        notes = [f"{group.group}: in no batch of this lineage" for group in self._groups if group.step is None]
        return await self._answer(sorted(touched), None, notes)

    async def _answer(
        self, versions: Sequence[tuple[str, int]], about: int | None, notes: Sequence[str] = ()
    ) -> Lineage:
        """Return the answer. versions: see `_versions`. about: the queried version."""
        line, branches = self._ancestry.versions, self._branches
        own = await self._versions(versions)
        later = () if about is None else line(about + 1, self._newest) + branches.of_versions({self._run: about})
        return Lineage(
            run=self._run,
            asked=self._question,
            newest=self._newest,
            runs=self._ancestry.runs(),
            line=line(0, self._newest),
            versions=own,
            ancestors=line(0, about - 1) if about else (),
            descendants=later,
            branches=tuple(branch.run for branch in branches.branches),
            steps=tuple(self._steps),
            groups=tuple(self._groups),
            samples=tuple(self._samples),
            sessions=tuple(self._sessions.values()),
            notes=(*notes, *self._notes_on_credit(), *branches.notes),
        )

    def _notes_on_credit(self) -> list[str]:
        """Return a note per step whose batch sets loss masks and so overrides the sessions' credit rule."""
        steps = sorted(self._recredited) if self._sessions else []
        text = "its batch has its own loss masks, which override the credit rule of its sessions"
        return [f"step {step}: {text}" for step in steps]

    async def _versions(self, named: Iterable[tuple[str, int]]) -> tuple[Version, ...]:
        """Return versions. named: the run and number of each."""
        makers: dict[Ancestor, dict[int, str]] = {}
        for run, version in named:
            ancestor, maker = await self._ancestry.of_version(run, version)
            makers.setdefault(ancestor, {})[version] = maker
        collected = []
        for ancestor, versions in makers.items():
            records = await ancestor.records(versions=versions)
            approximate = await _approximate(ancestor)
            collected += [
                Version.of(records.version(version), maker, approximate) for version, maker in versions.items()
            ]
        return tuple(sorted(collected, key=lambda version: (-version.version, version.run)))

    async def _collect_batch(self, ancestor: Ancestor, step: model.Step) -> None:
        """Collect all groups and samples of a batch."""
        batch = step.sealed.event
        run = await self._ancestry.records(ancestor, groups=batch.groups, samples=batch.samples)
        trained = await self._trained(ancestor, step, batch.samples, run)
        self._groups += [
            Group.of(run.groups[name], tuple(s for s in batch.samples if group_of(s) == name), step.step)
            for name in batch.groups
            if name in run.groups and run.groups[name].prompt
        ]
        await self._collect_sessions(run, batch.samples)
        records = [run.sample(name, group_of(name)) for name in batch.samples]
        for record in records:
            masks, part = trained[record.sample]
            self._samples.append(Sample.of(record, ancestor.opened.fetch, masks, **part))

    async def _collect_calls(self, ancestor: Ancestor, names: Sequence[str]) -> None:
        """Collect generations in a client's datums, which have neither prompt event nor reward in the log."""
        run = await self._ancestry.records(ancestor, samples=names)
        records = [run.samples[name] for name in dict.fromkeys(names) if name in run.samples]
        self._samples += [Sample.of(record, ancestor.opened.fetch) for record in records]

    async def _collect_sessions(self, run: model.Run, samples: Iterable[str]) -> None:
        """Collect the sessions of the samples that were requested from agents."""
        owners: dict[str, list[str]] = {}
        for name in dict.fromkeys(requested_sample(name) for name in samples):
            requests = run.samples[name].requests if name in run.samples else ()
            if requests and requests[-1].event.maker is Maker.AGENT:
                owners.setdefault(requests[-1].run, []).append(name)
        for owner, names in owners.items():
            sessions = await read_sessions(self._ancestry.of_run(owner), names)
            self._sessions |= {(owner, session.session): session for session in sessions}

    async def _collect_groups(
        self, ancestor: Ancestor, steps: Mapping[str, int | None], only: str | None = None
    ) -> None:
        """Collect groups of `ancestor`, each with its step. only: one sample of them. Raises RunNotFound."""
        groups = (await self._ancestry.records(ancestor, groups=steps)).groups
        named = {name: (only,) if only else _members(ancestor, groups[name]) for name in steps}
        run = await self._ancestry.records(ancestor, samples=[name for names in named.values() for name in names])
        members = {group: tuple(name for name in names if name in run.samples) for group, names in named.items()}
        if only is not None and only not in run.samples:
            raise RunNotFound(f"run {ancestor.run} has group {group_of(only)}, but no sample {only!r}")
        trained: dict[str, tuple[BatchMasks | None, BatchPart]] = {}
        for owner, record in await _batches(self._ancestry, {step for step in steps.values() if step is not None}):
            self._steps.append(Step.of(record))
            names = [name for group, names in members.items() if steps[group] == record.step for name in names]
            trained |= await self._trained(owner, record, names, run)
        await self._collect_sessions(run, (name for names in members.values() for name in names))
        for name in (name for names in members.values() for name in names):
            if run.samples[name].completed is None:
                run.samples[name].spans = await _spans_so_far(ancestor, name)
            masks, part = trained.get(name, (None, BatchPart()))
            self._samples.append(Sample.of(run.samples[name], ancestor.opened.fetch, masks, **part))
        self._groups += [Group.of(groups[name], members[name], steps[name]) for name in steps]

    async def _trained(
        self, ancestor: Ancestor, step: model.Step, samples: Iterable[str], run: model.Run
    ) -> dict[str, tuple[BatchMasks, BatchPart]]:
        """Return the part of these samples in the batch."""
        settings, batch, names = ancestor.opened.settings.algorithm, step.sealed.event, set(samples)
        fetch = ancestor.opened.fetch
        masks, credits = BatchMasks(batch, fetch), BatchCredit(batch, fetch)
        whitened = settings.normalize_advantages and not has_kl_penalty(settings)
        if whitened and not names.issuperset(batch.samples):  # over all samples of the batch
            run = await self._ancestry.records(ancestor, samples=batch.samples)
        if any(column.name == LOSS_MASKS for column in batch.columns):
            self._recredited.add(step.step)
        rewards = dict(zip(batch.samples, batch.rewards, strict=True))
        advantages = make_advantages(
            [
                TrainedSample(
                    name, reward, mask_of(done.event, fetch, masks), credits.of(name, done.event.credit, fetch)
                )
                for name, reward in rewards.items()
                if (whitened or name in names) and (record := run.samples.get(name)) and (done := record.completed)
            ],
            settings,
        )
        into = step.step + 1 if step.committed else None
        since = () if into is None else self._ancestry.versions(into + 1, self._newest)
        return {
            name: (
                masks,
                BatchPart(
                    step=step.step,
                    normalised=reward,
                    trained_into=into,
                    advantage=advantages.get(name),
                    descendants=since + self._branches.of_sample(self._run, name, into),
                ),
            )
            for name, reward in rewards.items()
            if name in names
        }


def _members(ancestor: Ancestor, group: model.Group) -> tuple[str, ...]:
    """Return the ids of the group's samples, or of those that it may have."""
    if group.verdict is not None and group.verdict.event.samples:
        return group.verdict.event.samples
    settings, prompt = ancestor.opened.settings, group.prompt and group.prompt.event
    count: int | None = settings.rollout.n_samples_per_prompt
    if prompt and prompt.purpose is Purpose.EVAL:
        dataset = settings.evaluation.sets().get(prompt.dataset)
        count = dataset.n_samples_per_eval_prompt if dataset else settings.evaluation.n_samples_per_eval_prompt
    return tuple(sample_id(group.group, index) for index in range(count or 0))


async def _approximate(ancestor: Ancestor) -> list[int]:
    """Return the versions from which a run resumed with an approximate optimizer."""
    subjects = await ancestor.log.subjects(of_type(ancestor.run, type_of(TrainerRestored)))
    keys = [(type_of(TrainerRestored), subject.rpartition(".")[2]) for subject in subjects]
    events = [recorded.envelope.event for recorded in (await ancestor.last_of_each(keys)).values()]
    return [e.version for e in events if isinstance(e, TrainerRestored) and e.optimizer is Fidelity.APPROXIMATE]


async def _spans_so_far(ancestor: Ancestor, sample: str) -> tuple[WeightSpan, ...]:
    """Return the weight versions over the tokens of an unfinished rollout. Turns count once the rollout is complete."""
    spans: tuple[WeightSpan, ...] = ()
    async for chunk in ancestor.events(RolloutProgressed, sample):
        if chunk.turn is None:
            spans = merge_spans(spans, chunk.spans)
    return spans


def to_json(answer: Lineage) -> bytes:
    return msgspec.json.format(msgspec.json.encode(answer), indent=1)


async def _commands(ancestor: Ancestor, names: Sequence[str]) -> tuple[Command, ...]:
    """Return the commands from which a batch was made, in order."""
    last = await ancestor.last_of_each(event_keys((CommandGiven,), names))
    commands = []
    for recorded in last.values():
        event = recorded.envelope.event
        if isinstance(event, CommandGiven):
            datums = len(unpack_datums(ancestor.opened.fetch(event.datums))) if event.datums.n else 0
            commands.append(
                Command(
                    command=event.command,
                    kind=event.kind.value,
                    loss=event.arguments.get("loss_fn", ""),
                    source=event.source,
                    datums=datums,
                    samples=event.samples,
                    given_at=recorded.envelope.at,
                )
            )
    return tuple(sorted(commands, key=lambda command: names.index(command.command)))
