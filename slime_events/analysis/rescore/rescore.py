"""`rescore`: read a run once, grade its rollouts again if the change needs it, and compare.

log -> groups as they were decided, batches, evaluations -> portions of a few hundred samples
    -> graded concurrently in separate processes -> back in the log's order -> Comparison -> Report
"""

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import IO

from schemas.batches import BatchSealed
from slime_events.analysis.rescore.bulk_grading import Grade
from slime_events.analysis.rescore.change import Change
from slime_events.analysis.rescore.collect import Collector, Item
from slime_events.analysis.rescore.compare import Comparison, OnGrade
from slime_events.analysis.rescore.grade import Regrader
from slime_events.analysis.rescore.recredit import Recredit
from slime_events.analysis.rescore.report import Report, distributions
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.tokens.trajectory import Fetch
from slime_events.model.advantages import has_critic, has_kl_penalty
from slime_events.model.records import Group
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.filters.decide import make_group_filter
from slime_events.plugins.post_process import PostProcess
from storage.archive.log import ArchivedLog
from storage.archive.segment import SegmentRecord
from storage.cancellation import end_all
from storage.log import Readable, Recorded

PORTION = 1024
"""Samples that are graded at once."""
READ = 256
"""Events that are read at once."""
AHEAD = 4
"""Maximum number of portions that are graded while the next is read."""


async def rescore(
    opened: OpenedRun,
    change: Change,
    out: IO[bytes] | None = None,
    *,
    most: int = 5,
    on_grade: OnGrade | None = None,
    only_rules: bool = False,
) -> Report:
    """Compare a run with the same rollouts under a change.

    out: file for the changes. most: number of examples of each kind. on_grade: takes each new reward. only_rules: see
    `Regrader`. Raises ConfigError and PlugPointError if a grader or filter does not exist.
    """
    settings = change.after
    fetch = _fetch_of(opened, change)
    collector = Collector(opened.run, fetch, recredit=change.recredit)
    recredit = Recredit(change.rule, opened.fetch, collector.sessions)
    comparison = _comparison(change, recredit, out, most)
    comparison.on_grade = on_grade
    regrading = _regrader(change, collector, fetch, only_rules) if change.regrade else contextlib.nullcontext()
    async with regrading as regrader:
        async for items, grades in _graded(opened.log, collector, regrader):
            for item in items:
                match item:
                    case Group():
                        comparison.group(item, grades.get(item.group))
                    case BatchSealed():
                        comparison.batch(item)
                    case _:
                        comparison.evaluation(item)
        graders = collector.graders if regrader is None else regrader.graders
    comparison.groups.undecided = collector.undecided
    comparison.credit.rule, comparison.credit.sessions = str(change.rule) if change.recredit else "", recredit.count
    before, after = distributions(comparison.before, comparison.after)
    return Report(
        run=opened.run,
        where=opened.where,
        changed=change.texts,
        regraded=change.regrade,
        graders_before=_named(collector.graders),
        graders_after=_named(graders),
        filter_before=change.before.rollout.dynamic_sampling_filter_path or "none",
        filter_after=settings.rollout.dynamic_sampling_filter_path or "none",
        events=await opened.log.position(),
        samples=comparison.samples,
        groups=comparison.groups,
        rewards_before=before,
        rewards_after=after,
        steps=comparison.steps,
        evaluations=comparison.evaluations,
        mismatched=comparison.mismatched,
        without_kl=has_kl_penalty(change.before.algorithm) or has_kl_penalty(settings.algorithm),
        recredited=change.recredit,
        credit=comparison.credit,
        without_critic=has_critic(change.before.algorithm) or has_critic(settings.algorithm),
    )


def _comparison(change: Change, recredit: Recredit, out: IO[bytes] | None, most: int) -> Comparison:
    """Load the functions of the change. Raises ConfigError and PlugPointError."""
    settings = change.after
    judge = make_group_filter(settings.rollout, ArgsView.of_run(settings))
    was, now = (PostProcess.of(own.reward, ArgsView.of_run(own)) for own in (change.before, settings))
    filtered = settings.rollout.dynamic_sampling_filter_path
    return Comparison(change, judge if filtered else None, recredit, out, most, (was, now))


def _regrader(change: Change, collector: Collector, fetch: Fetch | None, only_rules: bool) -> Regrader:
    shown = ArgsView.of_run(change.after).as_dict()
    return Regrader(change.after.reward, shown, fetch=fetch, trajectories=collector.trajectories, only_rules=only_rules)


def _fetch_of(opened: OpenedRun, change: Change) -> Fetch | None:
    """Return what gives a user's grader the tokens; None if no such grader runs."""
    settings = change.after
    own = settings.reward.custom_rm_path or settings.rollout.custom_generate_function_path
    return opened.fetch if change.regrade and (own or settings.evaluation.has_functions) else None


async def _graded(
    log: Readable, collector: Collector, regrader: Regrader | None
) -> AsyncIterator[tuple[list[Item], dict[str, list[Grade]]]]:
    """Yield the portions in the log's order, each with the grades of its groups."""
    under_way: deque[tuple[list[Item], asyncio.Task[dict[str, list[Grade]]]]] = deque()
    try:
        async for items in _portions(log, collector):
            under_way.append((items, asyncio.create_task(_grade(items, regrader))))
            await asyncio.sleep(0)  # start the task before more is read
            if len(under_way) > AHEAD:
                done, task = under_way.popleft()
                yield done, await task
        while under_way:
            done, task = under_way.popleft()
            yield done, await task
    finally:
        await end_all(*(task for _, task in under_way))


async def _grade(items: Sequence[Item], regrader: Regrader | None) -> dict[str, list[Grade]]:
    if regrader is None:
        return {}
    groups = [item for item in items if isinstance(item, Group)]
    grades = await regrader.grade(groups)
    return {group.group: of_group for group, of_group in zip(groups, grades, strict=True)}


async def _portions(log: Readable, collector: Collector) -> AsyncIterator[list[Item]]:
    items: list[Item] = []
    samples = 0
    async for records in _records(log):
        for record in records:
            for item in collector.apply(record.subject, record.data):
                items.append(item)
                samples += len(item.samples) if isinstance(item, Group) else 0
            if samples >= PORTION:
                yield items
                items, samples = [], 0
    yield items


async def _records(log: Readable) -> AsyncIterator[Sequence[SegmentRecord] | Sequence[Recorded]]:
    """Yield every stored event, in batches. An archive's events are decoded only if they are needed."""
    if isinstance(log, ArchivedLog):
        stored = log.records()
        while records := list(itertools.islice(stored, READ)):
            yield records
        return
    async for recorded in log.read():
        yield (recorded,)


def _named(graders: Mapping[tuple[str, str], int]) -> list[tuple[str, str, int]]:
    return sorted(((name, digest, count) for (name, digest), count in graders.items()), key=lambda grader: -grader[2])
