"""`StepSamples`: calls the user's functions that see a step's samples, before its batch is sealed.

    decided batch.sealed -> rollouts, including those rejected since the last batch, read from the log -> functions
    -> batch.sealed with the functions' decisions -> the log

The functions run in the conductor's process, as slime's run in its rollout manager. Their decisions are in the event,
so they are called again only if a conductor is lost between the call and the append.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby

from msgspec.structs import replace

from schemas.batches import BatchSealed
from schemas.errors import StorageError
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.groups import GroupRejected, RejectionCause
from schemas.ids import group_of, requested_sample, returned_id
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutReturned
from schemas.subjects import about, of_type
from slime_events.core.state.run import RunState
from slime_events.core.tokens.trajectory import Fetch, read_trajectory
from slime_events.loop.conductor.seal import batch_digest
from slime_events.plugins.filters.gathering import MetricGatherer
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import completed_sample
from slime_events.plugins.step_functions import (
    CONVERT,
    EVAL_LOG,
    FILTER,
    LOG,
    OF_BATCHES,
    PROCESS,
    Group,
    StepFunctions,
    flat,
)
from storage.log import EventLog

AT_ONCE = 32
"""Samples read concurrently."""


class StepSamples:
    """Completes a conductor's decisions with the results of the user's functions."""

    def __init__(self, functions: StepFunctions, log: EventLog, fetch: Fetch) -> None:
        self._functions, self._log, self._fetch = functions, log, fetch
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def finish(self, events: list[Event], state: RunState) -> list[Event]:
        """Return the events, with the functions' decisions in batches and evaluations. Raises PlugPointError."""
        finished = []
        for event in events:
            if isinstance(event, BatchSealed) and self._functions.code(*OF_BATCHES):
                rejected = [rejection for rejection in events if isinstance(rejection, GroupRejected)]
                event = await self._batch(event, rejected, state)
            elif isinstance(event, EvalCompleted) and self._functions.code(EVAL_LOG):
                event = await self._evaluation(event, state)
            finished.append(event)
        return finished

    async def _batch(self, sealed: BatchSealed, decided: Sequence[GroupRejected], state: RunState) -> BatchSealed:
        functions, gatherer = self._functions, MetricGatherer()
        begun, rejected = await self._since_last(decided)
        for rejection in rejected:
            gatherer.on_dynamic_filter_drop(rejection.reason if rejection.cause is RejectionCause.FILTER else None)
        kept = [await self._group(tuple(samples)) for _, samples in groupby(sealed.samples, group_of)]
        others: list[Group] = []
        if functions.code(PROCESS):
            others = [group for rejection in rejected if (group := await self._group(rejection.samples))]
        await asyncio.to_thread(functions.look, kept, [*kept, *others])
        named = zip(sealed.samples, flat(kept), strict=True)
        seconds = max(0.0, (time.time_ns() - begun) / 1e9)
        metrics = gatherer.collect() | await self._returned_metrics(sealed.step)
        logs = await asyncio.to_thread(functions.logs, sealed.step, kept, metrics, seconds)
        sealed = replace(
            sealed,
            removed=tuple(name for name, sample in named if functions.code(FILTER) and sample.remove_sample),
            log_function=functions.by_setting[LOG].name if logs else "",
            functions=functions.code(*OF_BATCHES),
        )
        if not functions.code(CONVERT):
            return sealed
        converted = await asyncio.to_thread(functions.convert, kept, sealed.raw_rewards, sealed.rewards)
        samples = {name: sample for group in sealed.groups for name, sample in state.groups[group].samples.items()}
        rewards = zip(sealed.samples, converted.rewards, strict=True)
        return replace(
            sealed,
            rewards=converted.rewards,
            raw_rewards=converted.raw_rewards,
            digest=batch_digest(sealed.step, [(name, samples[name].digest, reward) for name, reward in rewards]),
            converted_by=functions.by_setting[CONVERT].name,
            columns=converted.columns,
        )

    async def _evaluation(self, event: EvalCompleted, state: RunState) -> EvalCompleted:
        names = [tuple(state.groups[group].samples) for group in state.evals[event.entity()].groups]
        groups = [await self._group(samples) for samples in names]
        logs = await asyncio.to_thread(self._functions.logs_evaluation, event.version, event.dataset, groups)
        name = self._functions.by_setting[EVAL_LOG].name if logs else ""
        return replace(event, log_function=name, functions=self._functions.code(EVAL_LOG))

    async def _returned_metrics(self, step: int) -> dict[str, float]:
        """Return the metrics of the user's rollout function, if there is one."""
        returned = await self._log.last(about(self._log.run, "rollout", returned_id(step, evaluation=False)))
        event = None if returned is None else returned.envelope.event
        return event.metrics if isinstance(event, RolloutReturned) else {}

    async def _since_last(self, decided: Sequence[GroupRejected]) -> tuple[int, list[GroupRejected]]:
        """Return (time [ns] of the last sealed batch or the run's begin, groups rejected since, `decided` last)."""
        run = self._log.run
        last = await self._log.last(of_type(run, "batch.sealed")) or await self._log.last(about(run, "run", "run"))
        if last is None:
            return time.time_ns(), list(decided)
        read = self._log.read(last.position, of_type(run, "group.rejected"))
        events = [recorded.envelope.event async for recorded in read]
        return last.envelope.at, [*(event for event in events if isinstance(event, GroupRejected)), *decided]

    async def _group(self, samples: tuple[str, ...]) -> Group:
        """Return the completed and graded rollouts of these samples, which belong to one group."""
        if not samples:
            return []
        name = group_of(samples[0])
        recorded = await self._log.last(about(self._log.run, "prompt", name))
        prompt = None if recorded is None else recorded.envelope.event
        if not isinstance(prompt, PromptSubmitted):
            raise StorageError(f"the log of run {self._log.run} holds no prompt of group {name}")
        graded = await asyncio.gather(*(self._sample(sample, prompt) for sample in samples))
        rollouts = defaultdict[str, list[Sample]](list)
        for name, sample in zip(samples, graded, strict=True):
            if sample is not None:
                rollouts[requested_sample(name)].append(sample)
        return [siblings if len(siblings) > 1 else siblings[0] for siblings in rollouts.values()]

    async def _sample(self, name: str, prompt: PromptSubmitted) -> Sample | None:
        """Return a graded rollout with tokens, log-probs, mask, reward and metadata; None if it is not graded."""
        run = self._log.run
        async with self._reading:
            graded = await self._log.last(about(run, "reward", name))
            done = await self._log.last(of_type(run, "rollout.completed", name))
            if graded is None or done is None:
                return None
            trajectory = await read_trajectory(self._log, name, self._fetch)
        reward, completed = graded.envelope.event, done.envelope.event
        if not isinstance(reward, RewardAssigned) or not isinstance(completed, RolloutCompleted):
            return None
        sample, mask = completed_sample(completed, prompt), trajectory.loss_mask
        detail = dict(reward.detail or {})
        sample.metadata = {**sample.metadata, **(detail.pop("metadata", None) or {})}
        sample.reward = detail or reward.value
        sample.tokens = [*self._fetch(trajectory.prompt).tolist(), *trajectory.tokens.tolist()]
        sample.rollout_log_probs = trajectory.log_probs.tolist()
        if reward.teacher_log_probs is not None:
            sample.teacher_log_probs = self._fetch(reward.teacher_log_probs).tolist()
        sample.loss_mask = [1] * trajectory.length if mask is None else mask.tolist()
        return sample
