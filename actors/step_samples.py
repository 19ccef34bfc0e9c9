"""`StepSamples`: the user's functions that see a step's samples, called before its batch is sealed.

    decided: batch.sealed -> its rollouts, and those rejected since the last batch, read from the log -> the functions
    -> batch.sealed with what they decided -> the log

They run in the conductor's process, as slime's do in its rollout manager. What they decide is in the event, so nobody
calls them again, but for a conductor that was lost between the call and the append.
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
from slime_events.core.trajectory import Fetch, read_trajectory
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
"""Samples that are read side by side."""


class StepSamples:
    """Finishes a conductor's decisions with the user's functions. fetch: gives an array's numbers."""

    def __init__(self, functions: StepFunctions, log: EventLog, fetch: Fetch) -> None:
        self._functions, self._log, self._fetch = functions, log, fetch
        self._reading = asyncio.Semaphore(AT_ONCE)

    async def finish(self, events: list[Event], state: RunState) -> list[Event]:
        """The same events, batches and evaluations with what the functions decided. Raises PlugPointError."""
        finished = []
        for event in events:
            if isinstance(event, BatchSealed) and self._functions.code(*OF_BATCHES):
                event = await self._batch(event, [one for one in events if isinstance(one, GroupRejected)], state)
            elif isinstance(event, EvalCompleted) and self._functions.code(EVAL_LOG):
                event = await self._evaluation(event, state)
            finished.append(event)
        return finished

    async def _batch(self, sealed: BatchSealed, decided: Sequence[GroupRejected], state: RunState) -> BatchSealed:
        functions, gatherer = self._functions, MetricGatherer()
        begun, rejected = await self._since_last(decided)
        for one in rejected:
            gatherer.on_dynamic_filter_drop(one.reason if one.cause is RejectionCause.FILTER else None)
        kept = [await self._group(tuple(samples)) for _, samples in groupby(sealed.samples, group_of)]
        others: list[Group] = []
        if functions.code(PROCESS):
            others = [group for one in rejected if (group := await self._group(one.samples))]
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
        made = await asyncio.to_thread(functions.convert, kept, sealed.raw_rewards, sealed.rewards)
        known = {name: one.digest for group in sealed.groups for name, one in state.groups[group].samples.items()}
        lines = [(name, known[name], reward) for name, reward in zip(sealed.samples, made.rewards, strict=True)]
        return replace(
            sealed,
            rewards=made.rewards,
            raw_rewards=made.raw_rewards,
            digest=batch_digest(sealed.step, lines),
            converted_by=functions.by_setting[CONVERT].name,
            columns=made.columns,
        )

    async def _evaluation(self, event: EvalCompleted, state: RunState) -> EvalCompleted:
        names = [tuple(state.groups[group].samples) for group in state.evals[event.entity()].groups]
        groups = [await self._group(samples) for samples in names]
        logs = await asyncio.to_thread(self._functions.logs_evaluation, event.version, event.dataset, groups)
        name = self._functions.by_setting[EVAL_LOG].name if logs else ""
        return replace(event, log_function=name, functions=self._functions.code(EVAL_LOG))

    async def _returned_metrics(self, step: int) -> dict[str, float]:
        """Those of a rollout function, if there is one."""
        returned = await self._log.last(about(self._log.run, "rollout", returned_id(step, evaluation=False)))
        event = None if returned is None else returned.envelope.event
        return event.metrics if isinstance(event, RolloutReturned) else {}

    async def _since_last(self, decided: Sequence[GroupRejected]) -> tuple[int, list[GroupRejected]]:
        """(when the last batch was sealed, or the run began; the groups that were rejected since, `decided` last)."""
        run = self._log.run
        last = await self._log.last(of_type(run, "batch.sealed")) or await self._log.last(about(run, "run", "run"))
        if last is None:
            return time.time_ns(), list(decided)
        read = self._log.read(last.position, of_type(run, "group.rejected"))
        found = [recorded.envelope.event async for recorded in read]
        known = [event for event in found if isinstance(event, GroupRejected)]
        return last.envelope.at, [*known, *decided]

    async def _group(self, samples: tuple[str, ...]) -> Group:
        """The rollouts of these samples of one group, those that were made and graded."""
        if not samples:
            return []
        name = group_of(samples[0])
        recorded = await self._log.last(about(self._log.run, "prompt", name))
        prompt = None if recorded is None else recorded.envelope.event
        if not isinstance(prompt, PromptSubmitted):
            raise StorageError(f"the log of run {self._log.run} holds no prompt of group {name}")
        made = await asyncio.gather(*(self._sample(sample, prompt) for sample in samples))
        rollouts = defaultdict[str, list[Sample]](list)
        for sample, one in zip(samples, made, strict=True):
            if one is not None:
                rollouts[requested_sample(sample)].append(one)
        return [several if len(several) > 1 else several[0] for several in rollouts.values()]

    async def _sample(self, name: str, prompt: PromptSubmitted) -> Sample | None:
        """A graded rollout with all that is known of it."""
        run = self._log.run
        async with self._reading:
            graded = await self._log.last(about(run, "reward", name))
            done = await self._log.last(of_type(run, "rollout.completed").replace("*", name))
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
