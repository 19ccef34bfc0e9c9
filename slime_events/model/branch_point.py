"""`read_point`: the position in a run's log at which a branch begins.

version V   position of the step.committed that made it, or of the weights.published that the run begins with
prompts     those that the run had finished with by then are the branch's past, the others its future

Finished prompts are those in batches of steps before V, those of groups rejected by then, and lines that cannot be
used. The branch does not take over groups that were open, however far they had come: it draws their prompts again. So
no prompt that the branch's weights were trained on is drawn again, and none is skipped because the run had drawn ahead.
"""

from typing import cast

from msgspec.structs import replace

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue, RunNotFound
from schemas.event import Purpose
from schemas.groups import GroupRejected
from schemas.ids import INBOX, TRAIN
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from slime_events.core.config.data import DataSettings
from slime_events.core.run.run_reader import branched_of, open_run
from slime_events.loop.prompts.draw_stats import DrawStats
from slime_events.model.lookup import LogPart
from storage.log import Readable


async def read_point(log: Readable, version: int, where: str, *, fresh_optimizer: bool = False) -> Branched:
    """Return the point at which a branch from `version` begins.

    where: what the run is opened with. fresh_optimizer: the branch starts with a new optimizer and schedule. Raises
    RunNotFound if the run has not made the version; InvalidValue if the version belongs to the run that this one
    branched off from, or if it has no optimizer digest to check against.
    """
    before = await branched_of(log)
    if before and version < before.version:
        raise InvalidValue(
            f"version {version} was made by run {before.run}, which {log.run} branched off from at version "
            f"{before.version}. Branch off from {before.where}"
        )
    position, weights, optimizer, critic = await _recorded_version(log, version, before)
    if not (optimizer or fresh_optimizer or version == (before.version if before else 0)):
        raise InvalidValue(
            f"run {log.run} has no optimizer digest of version {version} (--optimizer-digest), so a branch could not "
            "recognise its state. Branch off from a version that has one, or give --reset-optimizer"
        )
    if before and before.follows:  # it draws no prompts: take those of the run that it follows, at the same version
        async with open_run(before.where) as followed:
            point = await read_point(followed.log, version, before.where, fresh_optimizer=True)
        cursors, passed = point.cursors, point.passed
    else:
        cursors, passed = await _prompts(LogPart(log, position), version, before)
    return Branched(
        run=log.run,
        where=where,
        position=position,
        version=version,
        weights_digest=weights,
        optimizer_digest="" if fresh_optimizer else optimizer,
        critic_digest="" if fresh_optimizer else critic,
        cursors=cursors,
        passed=passed,
    )


async def with_draws(point: Branched, log: Readable, data: DataSettings) -> Branched:
    """Return `point` with statistics of the prompts that the run had finished with, if a branch with these settings
    samples prompts by them. log: of the point's run.
    """
    if data.prompt_sampler == "file" and data.archive_prompts is None:
        return point
    return replace(point, draws=(await _draws(log, point, data.pass_reward)).drawn_before())


async def _draws(log: Readable, point: Branched, pass_reward: float) -> DrawStats:
    before = await branched_of(log)
    if before and before.follows:
        async with open_run(before.where) as followed:
            there = await read_point(followed.log, point.version, before.where, fresh_optimizer=True)
            return await _draws(followed.log, there, pass_reward)
    draws = DrawStats(pass_reward, only=await _finished(LogPart(log, point.position), point.version))
    await draws.read(log, point.position)
    return draws


async def _recorded_version(log: Readable, version: int, before: Branched | None) -> tuple[int, str, str, str]:
    """Return the position at which a version was first recorded, and the digests of weights, optimizer and critic (""
    before the first step).
    """
    part, first = LogPart(log), before.version if before else 0
    if version == first:
        async for recorded in part.of_type(WeightsPublished):
            event = cast(WeightsPublished, recorded.envelope.event)
            states = (before.optimizer_digest, before.critic_digest) if before else ("", "")
            return recorded.position, event.digest, *states
        raise RunNotFound(f"run {log.run} has no weight version yet")
    committed = (await part.records(versions=[version])).version(version).committed
    if committed is not None:
        commit = committed.event
        return committed.position, commit.weights_digest, commit.optimizer_digest, commit.critic_digest
    newest = await part.newest(StepCommitted)
    last = newest.version if newest else first
    raise RunNotFound(f"run {log.run} has no weight version {version}: there are {first} to {last}")


async def _prompts(
    part: LogPart, version: int, before: Branched | None
) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Return, by source, the offset from which the branch draws, and the offsets from there on that it skips."""
    finished = await _finished(part, version)
    cursors = dict(before.cursors) if before else {}
    passed = dict(before.passed) if before else {}
    for path, groups in (await _drawn(part)).items():
        waiting = [offset for offset, group in groups.items() if group is not None and group not in finished]
        cursor = cursors[path] = min(waiting, default=max(groups) + 1)
        decided = {offset for offset, group in groups.items() if group in finished}
        passed[path] = tuple(sorted(offset for offset in {*decided, *passed.get(path, ())} if offset >= cursor))
    return cursors, {path: offsets for path, offsets in passed.items() if offsets}


async def _drawn(part: LogPart) -> dict[str, dict[int, str | None]]:
    """Return groups by source and offset; None for a line that cannot be used."""
    drawn: dict[str, dict[int, str | None]] = {}

    def add(source: Source, group: str | None) -> None:
        if source.path != INBOX and source.offset >= 0:  # a line that is not a row has no offset
            drawn.setdefault(source.path, {})[source.offset] = group

    async for prompt in part.events(PromptSubmitted):
        if prompt.purpose is Purpose.TRAIN:
            add(prompt.source, prompt.group)
    async for rejected in part.events(PromptRejected):
        if rejected.dataset == TRAIN:
            add(rejected.source, None)
    return drawn


async def _finished(part: LogPart, version: int) -> set[str]:
    """Return the groups that were rejected, or trained by the steps up to the version."""
    groups = {rejected.group async for rejected in part.events(GroupRejected)}
    async for batch in part.events(BatchSealed):
        if batch.step >= version:
            break
        groups.update(batch.groups)
    return groups
