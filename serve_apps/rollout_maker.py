"""`RolloutMaker`: one request after the other becomes a rollout in the log.

It goes on from what the log holds of the sample, appends chunks and the end, fenced on everything said of it, and says
rollout.suspended where it rests at a step boundary, rollout.failed where it cannot be made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from schemas.errors import Conflict, DeadlineExceeded, EngineError, SlimeEventsError
from schemas.event import Event
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutRequested,
    RolloutSuspended,
    StopReason,
)
from schemas.subjects import about, everything_about
from serve_apps.engine.engine import Engine, GenerateRequest, Generator
from serve_apps.engine_weights import EngineWeights
from serve_apps.generate.custom import CustomGenerate
from serve_apps.generate.rollout_context import Desk
from serve_apps.inline_rewards import OwnRewards
from serve_apps.pausing_engine import PausingEngine
from serve_apps.rollout import ChunkRule, Rollout
from serve_apps.step_boundary import StepBoundary
from serve_apps.stream import stream
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.trajectory import Fetch, Trajectories
from storage.group_commit import GroupCommit
from storage.log import Append, Delivery, Fence

log = logging.getLogger(__name__)

Offload = Callable[[Event], Awaitable[Event]]
"""Puts an event's large arrays into the blob store."""


class RolloutMaker:
    """custom: makes the rollouts in place of one plain generation. rewards: those that this engine gives itself."""

    def __init__(
        self,
        worker: Participant,
        engine: Engine,
        commit: GroupCommit,
        fetch: Fetch,
        offload: Offload,
        *,
        rule: ChunkRule,
        weights: EngineWeights,
        boundary: StepBoundary,
        custom: CustomGenerate | None,
        rewards: OwnRewards | None,
    ) -> None:
        self._worker, self._engine, self._commit = worker, engine, commit
        self._fetch, self._offload, self._rule = fetch, offload, rule
        self._weights, self._boundary, self._custom, self._rewards = weights, boundary, custom, rewards
        self._since = (worker.incarnation or Incarnation()).since

    async def begin(self, request: RolloutRequested, delivery: Delivery, *, again: bool) -> Rollout | None:
        """The rollout with what the log holds of it; None where it has ended. again: it was begun here before."""
        trajectories, position = Trajectories(self._fetch), delivery.recorded.position
        trajectories.apply(request, position)
        if again or delivery.attempt > 1 or request.attempt > 0 or position < self._since:
            async for recorded in self._worker.log.read(1, self._scope(request.sample)):
                event = recorded.envelope.event
                if isinstance(event, RolloutCompleted) or (
                    isinstance(event, RolloutFailed | RolloutSuspended) and event.attempt >= request.attempt
                ):
                    return None
                trajectories.apply(event, recorded.position)
                position = recorded.position
        rollout = Rollout(request, trajectories.by_sample[request.sample], self._worker.id)
        rollout.known.position = position
        rollout.queued = max(0.0, (time.time_ns() - delivery.recorded.envelope.at) / 1e9)
        return rollout

    async def make(self, rollout: Rollout, delivery: Delivery) -> None:
        """To its end in the log, or until it rests. Raises EngineError, Conflict where another engine has it now."""
        async with self._weights.claimed_by(rollout.request) as claim:
            await self._make(rollout, delivery, PausingEngine(self._engine, self._weights, claim))

    async def _make(self, rollout: Rollout, delivery: Delivery, engine: Generator) -> None:
        request = rollout.request
        if self._custom is not None:
            await self._custom.make(rollout, self._desk(rollout, delivery, engine))
            return
        if self._boundary.rests(delivery.recorded):
            await self._append(rollout, rollout.rest(), delivery)
            return
        generate = GenerateRequest(
            rid=rid_of(delivery),
            prompt=self._fetch(request.prompt),
            sampling=request.sampling,
            seed=request.seed,
            resume=rollout.known.tokens,
        )
        last = await stream(
            engine,
            generate,
            rollout,
            self._rule,
            rests=lambda: self._boundary.rests(delivery.recorded),
            say=lambda chunk: self._append(rollout, chunk, delivery),
        )
        if last is None:
            await self._append(rollout, rollout.rest(), delivery)
            return
        await self._complete(rollout, rollout.end(last.finish or StopReason.STOP, last.text or ""), delivery)

    async def _complete(self, rollout: Rollout, end: RolloutCompleted, delivery: Delivery) -> None:
        """Append the end, and with it the reward that it causes where that is for this engine to give."""
        rewards = [] if self._rewards is None else await self._rewards.of(rollout.request, end)
        ended = self._worker.enclose(await self._offload(end), cause=delivery.recorded.envelope.id)
        fence = Fence(self._scope(end.sample), rollout.known.position)
        said = [ended, *(self._worker.enclose(reward, cause=ended.id) for reward in rewards)]
        await self._commit.append([Append(envelope, fence) for envelope in said])

    def _desk(self, rollout: Rollout, delivery: Delivery, engine: Generator) -> Desk:
        async def say(events: Sequence[Event]) -> None:
            rollout.known.position = await self._say(events, rollout.request, rollout.known.position, delivery)

        return Desk(engine, self._rule, rid_of(delivery), say, lambda: self._boundary.rests(delivery.recorded))

    async def _append(self, rollout: Rollout, event: Event, delivery: Delivery) -> int:
        return await self._say([event], rollout.request, rollout.known.position, delivery)

    async def _say(self, events: Sequence[Event], request: RolloutRequested, position: int, delivery: Delivery) -> int:
        """Append in one call, fenced on all that is said of the sample: `position` is the last that we know of.

        The position of the last event.
        """
        fence, cause = Fence(self._scope(request.sample), position), delivery.recorded.envelope.id
        appends = [Append(self._worker.enclose(await self._offload(event), cause=cause), fence) for event in events]
        return (await self._commit.append(appends))[-1]

    def _scope(self, sample: str) -> str:
        """What is said of a sample while it is made: its rollout, and its turns where there may be some."""
        run = self._worker.log.run
        return about(run, "rollout", sample) if self._custom is None else everything_about(run, sample)

    async def give_up(
        self, request: RolloutRequested, rollout: Rollout | None, error: Exception, delivery: Delivery
    ) -> bool:
        """Say why, so that the conductor can ask again or reject the group. False where another engine has it now."""
        position = rollout.known.position if rollout else await self._last_position(request)
        invalid = isinstance(error, SlimeEventsError) and not isinstance(error, EngineError | DeadlineExceeded)
        known = isinstance(error, SlimeEventsError)
        log.warning("%s failed: %s", request.sample, error, exc_info=None if known else error)
        failed = RolloutFailed(
            sample=request.sample,
            group=request.group,
            attempt=request.attempt,
            kind=FailureKind.INVALID if invalid else FailureKind.ENGINE,
            message=str(error) if known else f"{type(error).__name__}: {error}",
            engine=self._worker.id,
        )
        try:
            await self._say([failed], request, position, delivery)
        except Conflict:
            return False
        return True

    async def _last_position(self, request: RolloutRequested) -> int:
        last = await self._worker.log.last(self._scope(request.sample))
        return last.position if last else 0


def rid_of(delivery: Delivery) -> str:
    """A name that no other delivery of any request has."""
    request = delivery.recorded.envelope.event
    assert isinstance(request, RolloutRequested)
    return f"{request.sample}-{request.attempt}-{delivery.attempt}"
