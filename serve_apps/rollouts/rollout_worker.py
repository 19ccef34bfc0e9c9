"""`RolloutWorker`: a competing consumer of `rollout.requested` around one engine. It does not depend on Ray Serve.

    take requests if there is room -> wait for weights of at least `min_version` -> generate -> append chunks and the
                                      end -> ack
    weights.published -> verify -> retract, load, continue -> append weights.activated (`EngineWeights`)
    batch.sealed that suspends -> append the last chunk and rollout.suspended of the running rollouts -> ack

There is no router and no push: an engine pulls as many requests as it has room for. The ack comes after the end is in
the log. So the requests of a lost engine are delivered again, and their rollouts continue from their last chunk.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np

from schemas.batches import BatchSealed
from schemas.doc import doc
from schemas.errors import (
    Conflict,
    DeadlineExceeded,
    EngineError,
    LogUnavailable,
    NoSpace,
    RequestRefused,
    SlimeEventsError,
    StoreUnavailable,
    reason_of,
)
from schemas.event import Event, Purpose
from schemas.rollouts import (
    FailureKind,
    Maker,
    RolloutCompleted,
    RolloutFailed,
    RolloutRequested,
    RolloutSuspended,
)
from schemas.subjects import about, everything_about, of_type
from serve_apps.engines.engine import Engine
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.rollouts.answerer import Answerer, MakerSetup
from serve_apps.rollouts.early_requests import EarlyRequests, EarlyRollout
from serve_apps.rollouts.inline_rewards import InlineRewards
from serve_apps.rollouts.makers import make_answerers
from serve_apps.rollouts.rollout import STREAMED, ChunkRule, Generate, Rollout, RolloutContext
from serve_apps.rollouts.suspects import Suspects, loss_of
from slime_events.core.config.engine import LEASE_S
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.sessions.turn_paths import TurnPaths
from slime_events.core.telemetry.current_span import call_in_span
from slime_events.core.telemetry.span_place import generate_place
from slime_events.core.tokens.trajectory import Fetch, Trajectories, Trajectory
from storage.cancellation import end_all, fail
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Append, Delivery, Fence, Recorded

log = logging.getLogger(__name__)

HEALTH_EVERY_S = 3.0
HEALTH_DEADLINE_S = 10.0
TAKE_LIMIT = 4
"""Requests taken in one call, so that engines that are ready at the same time share the requests."""

WORKER_FAILURES = (LogUnavailable, StoreUnavailable, NoSpace)
"""Errors that stop the whole worker: every other sample would fail with them too."""

Offload = Callable[[Event], Awaitable[Event]]
"""Moves an event's large arrays to the blob store."""


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Dependencies of a rollout worker."""

    participant: Participant
    engine: Engine
    commit: GroupCommit
    fetch: Annotated[Fetch, doc("Reads large arrays from the blob store.")]
    offload: Annotated[Offload, doc("Moves an event's large arrays to the blob store.")]
    weights: EngineWeights
    rule: ChunkRule


class RolloutWorker:
    """Makes the rollouts of one engine. `run` ends with the run, or raises the worker's error.

    `room` is the maximum number of samples in flight, `take_limit` the number of requests taken in one call.
    `answerers` make the rollouts, by the request's maker; the default is the registry without generate functions.
    `rewards` are computed here; without it the grader computes all. `lease_s` is the time until the requests of a lost
    worker are delivered to others.
    """

    def __init__(
        self,
        context: EngineContext,
        room: int,
        *,
        take_limit: int = TAKE_LIMIT,
        answerers: Mapping[Maker, Answerer] | None = None,
        rewards: InlineRewards | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._context, self._participant, self._weights = context, context.participant, context.weights
        self._log = context.participant.log
        self._paths = TurnPaths(self._log, context.fetch)
        self._answerers, self._rewards = make_answerers(MakerSetup()) if answerers is None else answerers, rewards
        self._room, self._take_limit, self._lease_s = room, take_limit, lease_s
        self._incarnation = context.participant.incarnation or Incarnation()
        self._early = EarlyRequests(self._log, self._paths, self._weights, self._begins_early)
        self._active: dict[asyncio.Task[None], Delivery] = {}
        self._newest: dict[str, asyncio.Task[None]] = {}
        self._boundary = 0
        self._failed: asyncio.Future[None] = asyncio.Future()
        self._suspects = Suspects(self._log)

    async def run(self) -> None:
        """Work until the run is over. Running requests then go back to the queue at once.

        Raises EngineLost if the engine is gone, with the requests that may have caused it.
        """
        await self._suspects.read()
        parts = [self._weights.follow, self._weights.switch, self._follow_boundary, self._follow_end, self._take]
        tasks = [asyncio.create_task(part(), name=part.__name__) for part in (*parts, self._renew, self._check_health)]
        try:
            async with self._early.listening_as(self._participant.id):
                done, _ = await asyncio.wait([*tasks, self._failed], return_when=asyncio.FIRST_COMPLETED)
                under_way = self._weights.under_way()
            for task in done:
                task.result()
        except EngineError as error:
            if await self._is_alive():
                raise
            raise loss_of(error, self._context.engine, self._suspects.blamed(under_way)) from error
        finally:
            active = list(self._active.items())
            await end_all(*tasks, *self._active, self._failed)
            unfinished = [delivery.release() for task, delivery in active if not _ended_well(task)]
            await asyncio.gather(*unfinished, return_exceptions=True)  # else the lease gives them back

    async def _follow_end(self) -> None:
        over = False
        since = max(1, self._incarnation.since)
        async with Follower(self._log, since, about(self._log.run, "run", "run")) as follower:
            while not (over and follower.caught_up):
                for recorded in await follower.next(wait_s=60.0):
                    over = self._participant.is_over(over, recorded.envelope.event)

    async def _follow_boundary(self) -> None:
        """Follow the batches that suspend, and abort the rollouts that the newest one suspends.

        Begins at the newest batch: a run has many, and rollouts that an older batch should have suspended may continue.
        """
        subject = of_type(self._log.run, "batch.sealed")
        newest = await self._log.last(subject)
        async for recorded in self._log.read(newest.position if newest else 1, subject, follow=True):
            if isinstance(recorded.envelope.event, BatchSealed) and recorded.envelope.event.suspends:
                self._boundary = recorded.position
                suspended = [rid_of(d) for d in self._active.values() if self._is_suspended(d.recorded)]
                await asyncio.gather(*map(self._context.engine.abort, suspended))

    def _is_suspended(self, requested: Recorded) -> bool:
        """Return whether a batch that suspends was sealed after this request. Evaluations are never suspended."""
        return _request_of(requested).purpose is Purpose.TRAIN and requested.position < self._boundary

    async def _take(self) -> None:
        subject, incarnation = of_type(self._log.run, "rollout.requested"), self._incarnation
        consumer = await self._log.consume(
            incarnation.queue, subject, lease_s=self._lease_s, start=incarnation.requests_from
        )
        try:
            while True:
                free = self._room - len(self._active)
                if free <= 0:
                    await asyncio.wait(self._active, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for delivery in await consumer.take(min(free, self._take_limit), wait_s=5.0):
                    self._begin(delivery)
                await asyncio.sleep(0)
        finally:
            await consumer.close()

    def _begin(self, delivery: Delivery) -> None:
        """Work on a request. If this worker already has it, begin after the earlier delivery has ended.

        A killed server may have forgotten its deliveries, and delivers a request again as if for the first time. The
        earlier delivery ends at the latest with this worker, which checks its engine's health.
        """
        request = _request_of(delivery.recorded)
        sample, place = request.sample, generate_place(request.sample, request.group)
        after, early = self._newest.get(sample), self._early.take(delivery.recorded)
        work = partial(self._work, delivery, early, after=after)
        task = asyncio.create_task(call_in_span(self._log.run, place, work))
        self._active[task], self._newest[sample] = delivery, task
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        sample = _request_of(self._active[task].recorded).sample
        if self._newest.get(sample) is task:
            del self._newest[sample]
        error = None if task.cancelled() else task.exception()
        if error is None:
            del self._active[task]
        else:
            fail(self._failed, error)  # the task stays active, so that its request is released

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await asyncio.gather(*(delivery.working() for delivery in list(self._active.values())))

    async def _check_health(self) -> None:
        """Check the engine, in parallel with the renewals: an engine that is busy for seconds keeps its requests."""
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            if not await self._is_alive():
                raise EngineError("the engine's scheduler process is gone")

    async def _is_alive(self) -> bool:
        """Try twice: if the machine is paused, the time for one answer passes."""
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_DEADLINE_S):
                    if await self._context.engine.healthy():
                        return True
        return False

    def _begins_early(self, request: RolloutRequested, others: int) -> bool:
        answerer = self._answerers.get(request.maker)
        has_room = len(self._active) + others < self._room and request.sample not in self._newest
        return has_room and answerer is not None and answerer.begins_early

    async def _work(self, delivery: Delivery, early: EarlyRollout | None, *, after: asyncio.Task[None] | None) -> None:
        """Handle one request, to its end in the log. An error raised here ends the worker."""
        request = _request_of(delivery.recorded)
        if request.maker not in self._answerers:
            await delivery.done()
            return
        rollout: Rollout | None = None
        try:
            if after is not None:
                await asyncio.wait({after})
            rollout = await self._open(request, delivery, again=after is not None)
            if rollout is not None:
                await self._make_with(early, rollout, delivery)
        except Conflict as conflict:
            # No ack: the other engine acknowledges. If it is lost too, the request must be delivered again.
            log.info("%s was taken over by another engine: %s", request.sample, conflict)
            return
        except WORKER_FAILURES:
            raise
        except Exception as error:  # of a user's function or the engine: it fails this sample alone
            if not await self._is_alive():
                raise  # a dead engine fails every request: other engines take them
            self._suspects.acquit(request.sample)
            self._weights.forget(request.sample)
            if not await self._give_up(request, rollout, error, delivery):
                return
        finally:
            if early is not None:
                await early.end()
        await delivery.done()

    async def _open(self, request: RolloutRequested, delivery: Delivery, *, again: bool) -> Rollout | None:
        """Return the rollout with its events in the log; None if it has ended. `again`: it was begun here before."""
        trajectories, position = Trajectories(self._context.fetch), delivery.recorded.position
        trajectories.apply(request, position)
        if again or delivery.attempt > 1 or request.attempt > 0 or position < self._incarnation.since:
            async for recorded in self._log.read(1, self._scope(request)):
                event = recorded.envelope.event
                if isinstance(event, RolloutCompleted) or (
                    isinstance(event, RolloutFailed | RolloutSuspended) and event.attempt >= request.attempt
                ):
                    return None
                trajectories.apply(event, recorded.position)
                position = recorded.position
            await self._suspects.read()
        self._suspects.check(request.sample)
        rollout = Rollout(request, trajectories.by_sample[request.sample], self._participant.id)
        rollout.trajectory.position = position
        rollout.queued = max(0.0, (time.time_ns() - delivery.recorded.envelope.at) / 1e9)
        return rollout

    async def _make_with(self, early: EarlyRollout | None, rollout: Rollout, delivery: Delivery) -> None:
        """Make the rollout, from the early generation if there is one and the log has no tokens."""
        if early is not None and not rollout.trajectory.length:
            rollout.begun, rollout.queued = early.begun, max(0.0, (early.at - delivery.recorded.envelope.at) / 1e9)
            await self._make(rollout, delivery, lambda _: early.deltas())
            return
        claim = await self._weights.claim(rollout.request)
        try:
            generate = self._suspects.of(rollout.request.sample, partial(self._weights.generate, claim))
            await self._make(rollout, delivery, generate)
        finally:
            self._weights.unclaim(claim)

    async def _make(self, rollout: Rollout, delivery: Delivery, generate: Generate) -> None:
        """Make the rollout until its end is in the log, or until it is suspended. Raises EngineError, Conflict."""
        append, is_suspended = partial(self._append, rollout, delivery), partial(self._is_suspended, delivery.recorded)
        rule = STREAMED if rollout.request.streams else self._context.rule
        request = rollout.request
        prompt = partial(self._paths.prompt, request.prompt, request.after)
        context = RolloutContext(generate, rule, rid_of(delivery), append, is_suspended, prompt)
        end = await self._answerers[request.maker].answer(rollout, context)
        if end is not None:
            await self._complete(rollout, end, delivery)
            if request.purpose is Purpose.CALL:
                tokens = np.concatenate([rollout.trajectory.tokens, self._context.fetch(end.tokens)])
                self._paths.add_turn(request, tokens)

    async def _complete(self, rollout: Rollout, end: RolloutCompleted, delivery: Delivery) -> None:
        """Append the end, together with the reward if this engine computes it."""
        rewards = [] if self._rewards is None else await self._rewards.of(rollout.request, end)
        ended = self._participant.enclose(await self._context.offload(end), cause=delivery.recorded.envelope.id)
        fence = Fence(self._scope(rollout.request), rollout.trajectory.position)
        envelopes = [ended, *(self._participant.enclose(reward, cause=ended.id) for reward in rewards)]
        await self._store([Append(envelope, fence) for envelope in envelopes], delivery)

    async def _append(self, rollout: Rollout, delivery: Delivery, events: Sequence[Event]) -> int:
        """Append in one call, fenced on all events about the sample. Return the position of the last event."""
        cause = delivery.recorded.envelope.id
        fence = Fence(self._scope(rollout.request), rollout.trajectory.position)
        offloaded = [await self._context.offload(event) for event in events]
        appends = [Append(self._participant.enclose(event, cause=cause), fence) for event in offloaded]
        rollout.trajectory.position = await self._store(appends, delivery)
        return rollout.trajectory.position

    async def _store(self, appends: Sequence[Append], delivery: Delivery) -> int:
        """Append, and return the last position. Events of a call are also sent directly to its waiting client."""
        positions = await self._context.commit.append(appends)
        if _request_of(delivery.recorded).purpose is Purpose.CALL:
            stored = [
                Recorded(position, append.envelope.subject, append.envelope, append.encoded())
                for position, append in zip(positions, appends, strict=True)
            ]
            await self._log.notify(delivery.recorded.envelope.producer, stored)
        return positions[-1]

    def _scope(self, request: RolloutRequested) -> str:
        """Return the subjects of a sample in progress: its rollout, and its turns if the answerer appends turns."""
        run, in_turns = self._log.run, self._answerers[request.maker].in_turns
        return everything_about(run, request.sample) if in_turns else about(run, "rollout", request.sample)

    async def _give_up(
        self, request: RolloutRequested, rollout: Rollout | None, error: Exception, delivery: Delivery
    ) -> bool:
        """Append the reason, so that the conductor can retry or reject the group. False if another engine has it."""
        if rollout is None:
            last = await self._log.last(self._scope(request))
            trajectory = Trajectory(request.sample, request.prompt, position=last.position if last else 0)
            rollout = Rollout(request, trajectory, self._participant.id)
        is_ours = isinstance(error, SlimeEventsError)
        is_retried = not is_ours or isinstance(error, EngineError | DeadlineExceeded)
        is_invalid = isinstance(error, RequestRefused) or not is_retried
        log.warning("%s failed: %s", request.sample, reason_of(error), exc_info=None if is_ours else error)
        failed = RolloutFailed(
            sample=request.sample,
            group=request.group,
            attempt=request.attempt,
            kind=FailureKind.INVALID if is_invalid else FailureKind.ENGINE,
            message=reason_of(error),
            engine=self._participant.id,
        )
        with contextlib.suppress(Conflict):
            await self._append(rollout, delivery, [failed])
            return True
        return False


def _request_of(recorded: Recorded) -> RolloutRequested:
    request = recorded.envelope.event
    assert isinstance(request, RolloutRequested)
    return request


def rid_of(delivery: Delivery) -> str:
    """Return a name that no other delivery of any request has."""
    request = _request_of(delivery.recorded)
    return f"{request.sample}-{request.attempt}-{delivery.attempt}"


def _ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
