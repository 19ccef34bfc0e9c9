"""`ArchivedPrompts`: the prompts of a recorded run, accepted groups and rejected ones alike, to be drawn again.

A prompt that was drawn several times is one row, at the place of its first time; where its rollouts are to be taken
too, each group is a row of its own. Rows keep their numbers however far the archive grows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from schemas.arrays import pack_tokens
from schemas.errors import DataError
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.prompts import PromptSubmitted
from schemas.subjects import of_type
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.loop.prompts.archived_rollouts import ArchivedRollouts, archived_rollouts

SamplesWhere = Callable[[OpenedRun, str], Awaitable[list[str]]]
"""Ids of a run's samples that a SQL query chooses: `slime_events.analysis.query.open_tables.samples_where`."""


@dataclass(slots=True)
class ArchivedPrompt:
    """One prompt. position: in its log, of the first time; groups: that were made of it, in their verdicts' order.
    passed, answers: of these. rewards: of the newest of them that was graded.
    """

    prompt: PromptSubmitted
    position: int
    groups: list[str] = field(default_factory=list)
    passed: int = 0
    answers: int = 0
    rewards: tuple[float, ...] = ()

    @property
    def pass_rate(self) -> float | None:
        """Share of its answers that passed; None where there is none."""
        return self.passed / self.answers if self.answers else None


@dataclass(frozen=True, slots=True)
class ArchivedPrompts:
    """path: names the source in events. position: up to which the log was read. rows: every prompt of it. eligible: the
    rows that may be drawn, in order. rollouts: of these, where they are taken with their prompts.
    """

    path: str
    position: int
    rows: list[ArchivedPrompt]
    eligible: list[int]
    rollouts: ArchivedRollouts | None = None

    def rates(self) -> dict[int, tuple[float, float]]:
        """(passed, answers) of each that may be drawn, by row."""
        return {row: (self.rows[row].passed, self.rows[row].answers) for row in self.eligible}


async def archived_prompts(
    data: DataSettings, samples_where: SamplesWhere, *, samples: int = 1, ahead: int = 0
) -> ArchivedPrompts | None:
    """Those of --archive-prompts; None where it is not set. Raises RunNotFound, and as `read_archive` does."""
    if data.archive_prompts is None:
        return None
    async with open_run(data.archive_prompts) as opened:
        return await read_archive(opened, data, samples_where, samples=samples, ahead=ahead)


async def read_archive(
    opened: OpenedRun, data: DataSettings, samples_where: SamplesWhere, *, samples: int = 1, ahead: int = 0
) -> ArchivedPrompts:
    """The prompts of a run that --archive-min-pass-rate, --archive-max-pass-rate and --archive-where choose. samples,
    ahead: as in `ArchivedRollouts`, where --archive-reuse takes rollouts. Raises DataError where no prompt is left.
    """
    rows = await read_rows(opened, data.pass_reward, each_group=data.recalls)
    chosen = None
    if data.archive_where is not None:
        chosen = {group_of(sample) for sample in await samples_where(opened, data.archive_where)}
    eligible = [number for number, row in enumerate(rows) if _is_eligible(row, data, chosen)]
    if not eligible:
        raise DataError(
            f"--archive-prompts {data.archive_prompts}: of its {len(rows)} prompts none has a pass rate from "
            f"{data.archive_min_pass_rate:g} to {data.archive_max_pass_rate:g}"
            + ("" if chosen is None else " and is chosen by --archive-where")
        )
    position = await opened.log.position()
    if not data.recalls:
        return ArchivedPrompts(opened.where, position, rows, eligible)
    named = {group: row for row in eligible for group in rows[row].groups}
    rollouts = await archived_rollouts(opened, named, samples=samples, bound=data.archive_max_staleness, ahead=ahead)
    return ArchivedPrompts(opened.where, position, rows, list(rollouts.groups), rollouts)


async def read_rows(opened: OpenedRun, pass_reward: float, *, each_group: bool = False) -> list[ArchivedPrompt]:
    """Every training prompt of a run, in the order of the first time that it was submitted. each_group: and not once
    for all of its groups.
    """
    prompts: dict[bytes, ArchivedPrompt] = {}
    by_group: dict[str, ArchivedPrompt] = {}
    run, log = opened.run, opened.log
    async for recorded in log.read(1, of_type(run, "prompt.submitted")):
        event = recorded.envelope.event
        if isinstance(event, PromptSubmitted) and event.purpose is Purpose.TRAIN:
            name = event.group.encode() if each_group else _content(event)
            prompt = ArchivedPrompt(_with_tokens(event, opened), recorded.position)
            by_group[event.group] = prompts.setdefault(name, prompt)
    async for recorded in log.read(1, (of_type(run, "group.accepted"), of_type(run, "group.rejected"))):
        verdict = recorded.envelope.event
        if isinstance(verdict, GroupAccepted | GroupRejected) and verdict.group in by_group:
            row = by_group[verdict.group]
            row.groups.append(verdict.group)
            row.passed += sum(reward >= pass_reward for reward in verdict.rewards)
            row.answers += len(verdict.rewards)
            row.rewards = verdict.rewards or row.rewards
    return list(prompts.values())


def _with_tokens(prompt: PromptSubmitted, opened: OpenedRun) -> PromptSubmitted:
    """The prompt with its tokens in it: a blob of that run is none of this one."""
    if prompt.tokens.blob is None:
        return prompt
    return msgspec.structs.replace(prompt, tokens=pack_tokens(opened.fetch(prompt.tokens)))


def _content(prompt: PromptSubmitted) -> bytes:
    said: tuple[Any, ...] = (prompt.messages or prompt.text, prompt.label, prompt.metadata, prompt.tools)
    return hashlib.blake2b(msgspec.msgpack.encode(said), digest_size=16).digest()


def _is_eligible(row: ArchivedPrompt, data: DataSettings, chosen: set[str] | None) -> bool:
    rate = row.pass_rate
    if rate is None or not data.archive_min_pass_rate <= rate <= data.archive_max_pass_rate:
        return False
    return chosen is None or not chosen.isdisjoint(row.groups)
