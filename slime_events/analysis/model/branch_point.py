"""`read_point`: the place in a run's log from which a branch goes on.

    version V   position of the step.committed that made it, or of the weights.published that the run begins with
    prompts     those that the run was done with there are the branch's past, the others its future

Done with are the prompts of batches of steps before V, groups rejected up to there, and lines that cannot be used.
Groups that were open there are not taken over, whatever had been made of them: the branch draws their prompts again. So
nothing that the branch's weights were trained on comes again, and nothing is left out because the run had drawn ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import replace

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue, RunNotFound
from schemas.event import Purpose
from schemas.groups import GroupRejected
from schemas.ids import INBOX, TRAIN
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.subjects import about, of_type
from schemas.weights import WeightsPublished
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import branched_of, open_run
from slime_events.loop.prompts.draw_stats import DrawStats
from storage.log import Readable


class _Made(NamedTuple):
    """A version: where it was said first, and the trainer's digests. No optimizer: it had made no step."""

    position: int
    weights: str
    optimizer: str


async def read_point(log: Readable, version: int, where: str, *, fresh_optimizer: bool = False) -> Branched:
    """Where a branch from `version` begins. where: what the run is opened with. fresh_optimizer: the branch's optimizer
    and schedule begin anew. Raises RunNotFound for a version that the run has not made, InvalidValue for one that the
    run it branched off from has.
    """
    before = await branched_of(log)
    first = before.version if before else 0
    if before and version < first:
        raise InvalidValue(
            f"version {version} was made by run {before.run}, which {log.run} branched off from at version {first}: "
            f"branch off from {before.where}"
        )
    made = await _first(log, before) if version == first else await _made(log, version, first)
    if before and before.follows:
        cursors, passed = await _followed_prompts(version, before)
    else:
        cursors, passed = await _prompts(log, made.position, version, before)
    return Branched(
        run=log.run,
        where=where,
        position=made.position,
        version=version,
        weights_digest=made.weights,
        optimizer_digest="" if fresh_optimizer else made.optimizer,
        cursors=cursors,
        passed=passed,
    )


async def with_draws(point: Branched, log: Readable, data: DataSettings) -> Branched:
    """`point` with what `log`, its run's, tells of the prompts that the run was done with there, where a branch with
    these settings draws by that.
    """
    if data.prompt_sampler == "file" and data.archive_prompts is None:
        return point
    return replace(point, draws=(await _draws(log, point, data.pass_reward)).known())


async def _draws(log: Readable, point: Branched, pass_reward: float) -> DrawStats:
    before = await branched_of(log)
    if before and before.follows:
        async with open_run(before.where) as followed:
            there = await read_point(followed.log, point.version, before.where)
            return await _draws(followed.log, there, pass_reward)
    draws = DrawStats(pass_reward, only=await _done_with(log, point.position, point.version))
    await draws.read(log, point.position)
    return draws


async def _first(log: Readable, before: Branched | None) -> _Made:
    async for recorded in log.read(1, of_type(log.run, "weights.published")):
        event = recorded.envelope.event
        if isinstance(event, WeightsPublished):
            return _Made(recorded.position, event.digest, before.optimizer_digest if before else "")
    raise RunNotFound(f"run {log.run} has no weight version yet")


async def _made(log: Readable, version: int, first: int) -> _Made:
    if version > first:
        async for recorded in log.read(1, about(log.run, "step", str(version - 1))):
            event = recorded.envelope.event
            if isinstance(event, StepCommitted):
                return _Made(recorded.position, event.weights_digest, event.optimizer_digest)
    newest = await log.last(of_type(log.run, "step.committed"))
    last = newest.envelope.event.version if newest and isinstance(newest.envelope.event, StepCommitted) else first
    raise RunNotFound(f"run {log.run} has no weight version {version}: there are {first} to {last}")


async def _followed_prompts(version: int, before: Branched) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Of a learner, which draws none: those that the run it follows was done with at its own version of that number."""
    async with open_run(before.where) as followed:
        point = await read_point(followed.log, version, before.where)
    return point.cursors, point.passed


async def _prompts(
    log: Readable, upto: int, version: int, before: Branched | None
) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Where the branch draws on, by source, and which prompts from there on it passes over."""
    drawn = await _drawn(log, upto)
    done = await _done_with(log, upto, version)
    cursors = dict(before.cursors) if before else {}
    passed = dict(before.passed) if before else {}
    for path, groups in drawn.items():
        waiting = [offset for offset, group in groups.items() if group is not None and group not in done]
        cursor = cursors[path] = min(waiting, default=max(groups) + 1)
        decided = {offset for offset, group in groups.items() if group in done}
        passed[path] = tuple(sorted(offset for offset in {*decided, *passed.get(path, ())} if offset >= cursor))
    return cursors, {path: offsets for path, offsets in passed.items() if offsets}


async def _drawn(log: Readable, upto: int) -> Mapping[str, Mapping[int, str | None]]:
    """Group by offset by source; None for a line that could not be used."""
    drawn: dict[str, dict[int, str | None]] = {}

    def note(source: Source, group: str | None) -> None:
        if source.path != INBOX and source.offset >= 0:  # a line that is no row at all has no place
            drawn.setdefault(source.path, {})[source.offset] = group

    for event_type in ("prompt.submitted", "prompt.rejected"):
        async for recorded in log.read(1, of_type(log.run, event_type)):
            event = recorded.envelope.event
            if recorded.position > upto:
                break
            if isinstance(event, PromptSubmitted) and event.purpose is Purpose.TRAIN:
                note(event.source, event.group)
            elif isinstance(event, PromptRejected) and event.dataset == TRAIN:
                note(event.source, None)
    return drawn


async def _done_with(log: Readable, upto: int, version: int) -> set[str]:
    """Groups that were rejected, or trained by the steps that made the version."""
    done: set[str] = set()
    async for recorded in log.read(1, of_type(log.run, "group.rejected")):
        if recorded.position > upto:
            break
        if isinstance(recorded.envelope.event, GroupRejected):
            done.add(recorded.envelope.event.group)
    async for recorded in log.read(1, of_type(log.run, "batch.sealed")):
        event = recorded.envelope.event
        if isinstance(event, BatchSealed):
            if event.step >= version:
                break
            done.update(event.groups)
    return done
