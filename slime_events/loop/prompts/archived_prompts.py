"""`ArchivedPrompts`: prompts of a recorded run to draw again, from accepted and rejected groups; and
`ArchivedRollouts`: the groups of the run whose rollouts may be reused.

A prompt that was drawn several times is a single row, at its first draw. To reuse rollouts, each group is a row. Rows
keep their numbers while the archive grows.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from schemas.arrays import pack_tokens
from schemas.doc import doc
from schemas.errors import DataError, InvalidValue
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of, order_in_group, sample_id
from schemas.prompts import PromptSubmitted
from schemas.recorded import CommonVersion, Recalled
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.subjects import of_type
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.state.group import VersionRange
from slime_events.loop.prompts.weight_ancestry import WeightAncestry, read_ancestry
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import completed_sample, graded_sample


class RecordedGroup(VersionRange, kw_only=True):
    """The completed rollouts of a group. The versions are in its run's numbering."""

    samples: Annotated[set[str], doc("requested samples of the rollouts")] = set()

    def number(self, common: CommonVersion) -> int | None:
        """Return its oldest weights in this run's numbering; None for a group without tokens."""
        if self.oldest is None or self.newest is None:
            return None
        return min(common.number(self.oldest), common.number(self.newest))


@dataclass(frozen=True, slots=True)
class ArchivedRollouts:
    """Recorded rollouts that may be reused."""

    run: Annotated[str, doc("the recorded run")]
    ancestry: Annotated[WeightAncestry, doc("its weights")]
    groups: Annotated[Mapping[int, RecordedGroup], doc("by the row of their prompt")]
    samples: Annotated[int, doc("rollouts to use of a group, the first ones")]
    bound: Annotated[int, doc("most optimizer steps that the oldest weights may be behind those that they train")]
    ahead: Annotated[int, doc("most steps from a draw to its training")]

    def in_time(self, version: int, common: CommonVersion) -> list[int]:
        """Return the rows that are still within the bound at their training, if they are drawn at `version`."""
        oldest = version + self.ahead - self.bound
        numbers = {row: group.number(common) for row, group in self.groups.items()}
        return [row for row, number in numbers.items() if number is not None and number >= oldest]

    def reused(self, row: int, group: str, common: CommonVersion) -> Recalled:
        """Return the rollouts to reuse for the prompt of a row, which must be in time. group: its id in that run."""
        oldest = self.groups[row].number(common)
        assert oldest is not None
        samples = tuple(sample_id(group, index) for index in range(self.samples))
        return Recalled(run=self.run, samples=samples, common=common, oldest=oldest, bound=self.bound)


async def archived_rollouts(
    opened: OpenedRun, rows: Mapping[str, int], *, samples: int, bound: int, ahead: int
) -> ArchivedRollouts:
    """Return the rollouts of a recorded run that may be reused. rows: group id to row, of groups that may be drawn.

    Leaves out groups with fewer rollouts than `samples`, and groups that reused rollouts themselves: those are drawn
    from the run that made them. Raises InvalidValue for a bound that no group can meet, DataError if no group is left.
    """
    if bound < ahead:
        raise InvalidValue(
            f"--archive-max-staleness {bound} is too small: a prompt drawn now may be trained up to {ahead} steps "
            "later, so even rollouts of the newest weights could be too old by then"
        )
    recorded_groups: dict[int, RecordedGroup] = {}
    async for recorded in opened.log.read(1, of_type(opened.run, "rollout.completed")):
        event = recorded.envelope.event
        if isinstance(event, RolloutCompleted) and event.group in rows and event.origin is None:
            group = recorded_groups.setdefault(rows[event.group], RecordedGroup())
            group.samples.add(event.rollout or event.sample)  # a further sample of a rollout counts with it
            group.add_spans(event.spans)
    whole = {row: {sample_id(name, index) for index in range(samples)} for name, row in rows.items()}
    groups = {row: group for row, group in sorted(recorded_groups.items()) if whole[row] <= group.samples}
    if not groups:
        raise DataError(
            f"none of the {len(rows)} groups of {opened.where} that may be drawn has {samples} rollouts "
            "of its own: give the --n-samples-per-prompt of that run, or less"
        )
    return ArchivedRollouts(opened.run, await read_ancestry(opened.log), groups, samples, bound, ahead)


SamplesWhere = Callable[[OpenedRun, str], Awaitable[list[str]]]
"""Returns ids of a run's samples that an SQL query selects: `slime_events.analysis.query.open_tables.samples_where`."""


@dataclass(slots=True)
class ArchivedPrompt:
    """A prompt of a recorded run."""

    prompt: PromptSubmitted
    position: Annotated[int, doc("position of its first submission in that log")]
    groups: Annotated[list[str], doc("its groups, in the order of their verdicts")] = field(default_factory=list)
    passed: Annotated[int, doc("passed answers of these groups")] = 0
    answers: Annotated[int, doc("answers of these groups")] = 0
    graded: Annotated[str, doc("its newest group with rewards; empty: there is none")] = ""
    rewards: Annotated[tuple[float, ...], doc("rewards of that group")] = ()
    members: Annotated[
        list[Sample | list[Sample]],
        doc("rollouts of that group for a buffer filter; a list for a rollout with several samples"),
    ] = field(default_factory=list)

    @property
    def pass_rate(self) -> float | None:
        """Share of its answers that passed; None without answers."""
        return self.passed / self.answers if self.answers else None


@dataclass(frozen=True, slots=True)
class ArchivedPrompts:
    """Prompts of a recorded run to draw again."""

    path: Annotated[str, doc("name of the source in events")]
    position: Annotated[int, doc("position up to which the run's log was read")]
    rows: Annotated[list[ArchivedPrompt], doc("all prompts of the run")]
    eligible: Annotated[list[int], doc("rows that may be drawn, in order")]
    rollouts: Annotated[ArchivedRollouts | None, doc("rollouts of these rows; None: rollouts are not reused")] = None

    def rates(self) -> dict[int, tuple[float, float]]:
        """Return (passed, answers) of each eligible row."""
        return {row: (self.rows[row].passed, self.rows[row].answers) for row in self.eligible}


async def archived_prompts(
    data: DataSettings, samples_where: SamplesWhere, *, samples: int, ahead: int
) -> ArchivedPrompts | None:
    """Return the prompts of --archive-prompts; None if unset. Raises RunNotFound and errors of `read_archive`."""
    if data.archive_prompts is None:
        return None
    async with open_run(data.archive_prompts) as opened:
        return await read_archive(opened, data, samples_where, samples=samples, ahead=ahead)


async def read_archive(
    opened: OpenedRun, data: DataSettings, samples_where: SamplesWhere, *, samples: int, ahead: int
) -> ArchivedPrompts:
    """Return the prompts that --archive-min-pass-rate, --archive-max-pass-rate and --archive-where select.

    samples, ahead: as in `ArchivedRollouts`, for --archive-reuse rollouts. Raises DataError if no prompt is left.
    """
    rows = await read_rows(opened, data.pass_reward, each_group=data.reuses_rollouts)
    chosen = None
    if data.archive_where is not None:
        chosen = {group_of(sample) for sample in await samples_where(opened, data.archive_where)}
    least, most = data.archive_min_pass_rate, data.archive_max_pass_rate
    eligible = [
        number
        for number, row in enumerate(rows)
        if row.pass_rate is not None and least <= row.pass_rate <= most
        if chosen is None or not chosen.isdisjoint(row.groups)
    ]
    if not eligible:
        raise DataError(
            f"--archive-prompts {data.archive_prompts}: of its {len(rows)} prompts none has a pass rate from "
            f"{least:g} to {most:g}" + ("" if chosen is None else " and is selected by --archive-where")
        )
    if data.buffer_filter_path:
        await read_members(opened, {row: rows[row] for row in eligible})
    position = await opened.log.position()
    if not data.reuses_rollouts:
        return ArchivedPrompts(opened.where, position, rows, eligible)
    named = {group: row for row in eligible for group in rows[row].groups}
    rollouts = await archived_rollouts(opened, named, samples=samples, bound=data.archive_max_staleness, ahead=ahead)
    return ArchivedPrompts(opened.where, position, rows, list(rollouts.groups), rollouts)


async def read_rows(opened: OpenedRun, pass_reward: float, *, each_group: bool = False) -> list[ArchivedPrompt]:
    """Return the training prompts of a run, in the order of first submission. each_group: a row per group."""
    prompts: dict[bytes, ArchivedPrompt] = {}
    by_group: dict[str, ArchivedPrompt] = {}
    run, log = opened.run, opened.log
    async for recorded in log.read(1, of_type(run, "prompt.submitted")):
        event = recorded.envelope.event
        if isinstance(event, PromptSubmitted) and event.purpose is Purpose.TRAIN:
            name = event.group.encode() if each_group else _content(event)
            if event.tokens.blob is not None:  # only the other run's store has the blob
                event = msgspec.structs.replace(event, tokens=pack_tokens(opened.fetch(event.tokens)))
            prompt = ArchivedPrompt(event, recorded.position)
            by_group[event.group] = prompts.setdefault(name, prompt)
    async for recorded in log.read(1, (of_type(run, "group.accepted"), of_type(run, "group.rejected"))):
        verdict = recorded.envelope.event
        if isinstance(verdict, GroupAccepted | GroupRejected) and verdict.group in by_group:
            row = by_group[verdict.group]
            row.groups.append(verdict.group)
            row.passed += sum(reward >= pass_reward for reward in verdict.rewards)
            row.answers += len(verdict.rewards)
            if verdict.rewards:
                row.graded, row.rewards = verdict.group, verdict.rewards
    return list(prompts.values())


async def read_members(opened: OpenedRun, rows: Mapping[int, ArchivedPrompt]) -> None:
    """Read the rollouts of each row's newest graded group, as its grader left them; without tokens and log-probs."""
    by_group = {row.graded: number for number, row in rows.items() if row.graded}
    samples: dict[str, Sample] = {}
    run, log = opened.run, opened.log
    async for recorded in log.read(1, of_type(run, "rollout.completed")):
        event = recorded.envelope.event
        if isinstance(event, RolloutCompleted) and (number := by_group.get(event.group)) is not None:
            sample = completed_sample(event, rows[number].prompt)
            sample.group_index, sample.index = number, order_in_group(event.sample)[0]
            samples[event.sample] = sample
    async for recorded in log.read(1, of_type(run, "reward.assigned")):
        event = recorded.envelope.event
        if isinstance(event, RewardAssigned) and (rewarded := samples.get(event.sample)) is not None:
            graded_sample(rewarded, event)
    for name in sorted(samples, key=order_in_group):
        row = rows[by_group[group_of(name)]]
        if order_in_group(name)[1]:  # a further sample of the rollout before it
            before = row.members.pop()
            row.members.append([*(before if isinstance(before, list) else [before]), samples[name]])
        else:
            row.members.append(samples[name])


def _content(prompt: PromptSubmitted) -> bytes:
    text = prompt.messages or prompt.text
    content: tuple[Any, ...] = (text, prompt.label, prompt.metadata, prompt.tools, prompt.attributes)
    return hashlib.blake2b(msgspec.msgpack.encode(content), digest_size=16).digest()
