"""`run_steps`: the committed steps of any run: one with rollouts of its own, or one that learns from another's.

A learner's log names the samples of its batches; their rollouts are in its parent's, which is opened beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from actors.learner.followed_batches import FollowedBatches
from schemas.batches import BatchSealed
from schemas.errors import StorageError
from schemas.ids import group_of
from schemas.rollouts import RolloutCompleted
from schemas.runs import Branched
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from slime_events.analysis.retrain.recorded_steps import RecordedStep, recorded_step, recorded_steps
from slime_events.analysis.retrain.version_chain import Chain
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.loop.learner.batches import DerivedBatch
from storage.log import Readable


async def run_steps(opened: OpenedRun, chain: Chain, steps: range) -> AsyncGenerator[RecordedStep, None]:
    """Those of `steps`, which are committed, in order. Raises StorageError, RunNotFound for a parent that is gone."""
    temperature = opened.settings.rollout.rollout_temperature
    branched = chain.started.branched if chain.started else None
    if branched is None or not branched.follows:
        async for step in recorded_steps(opened.log, opened.fetch, steps, temperature=temperature):
            yield step
        return
    async with open_run(branched.where) as parent:
        batches = FollowedBatches(parent.fetch, temperature=temperature, shared=branched.version)
        async for step in followed_steps(opened.log, parent.log, batches, steps, branched):
            yield step


async def followed_steps(
    own: Readable, parent: Readable, batches: FollowedBatches, steps: range, branched: Branched
) -> AsyncGenerator[RecordedStep, None]:
    """Of a learner: one pass over the parent's log, which holds no other rollouts than those of batches to come."""
    committed = await _committed(own, steps)
    lacking: dict[int, set[str]] = {}
    seen: dict[int, set[str]] = {step: set() for step in steps}
    async for recorded in own.read(1, of_type(own.run, "batch.sealed")):
        sealed = recorded.envelope.event
        if isinstance(sealed, BatchSealed) and sealed.step in steps:
            batches.apply(sealed, recorded.position)
            lacking[sealed.step] = set(sealed.samples)
    wanted = {group_of(sample): step for step, samples in lacking.items() for sample in samples}
    left = list(steps)
    async for recorded in parent.read():
        event = recorded.envelope.event
        sample = getattr(event, "sample", "")
        step = wanted.get(group_of(sample))
        if step in seen:
            batches.read(event, recorded.position)
            seen[step].add(sample)
            if isinstance(event, RolloutCompleted):
                lacking[step].discard(sample)
        while left and not lacking[left[0]]:
            step = left.pop(0)
            yield await asyncio.to_thread(recorded_step, batches, committed[step], {})
            batches.forget(step)
            batches.take(DerivedBatch(unused=tuple(seen.pop(step))))
        if not left:
            return
    if left:
        raise StorageError(
            f"step {left[0]} of run {own.run} was trained on rollouts that the log of {parent.run} at {branched.where} "
            "does not hold"
        )


async def _committed(own: Readable, steps: range) -> dict[int, StepCommitted]:
    found: dict[int, StepCommitted] = {}
    async for recorded in own.read(1, of_type(own.run, "step.committed")):
        event = recorded.envelope.event
        if isinstance(event, StepCommitted) and event.step in steps:
            found[event.step] = event
    return found
