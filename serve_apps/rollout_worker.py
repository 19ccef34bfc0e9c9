"""`RolloutWorker`: a competing consumer of `rollout.requested` around one engine. No Serve in it.

    take requests when there is room -> run at least `min_version` -> generate -> append chunks and the end -> ack
    weights.published -> verify -> retract, load, go on -> append weights.activated
    batch.sealed that suspends -> append the chunk and rollout.suspended of what is under way -> ack

There is no router and no push: an engine pulls what it has room for. The ack comes after the end is in the log, so the
work of a lost engine is delivered again and goes on from its last chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from schemas.errors import (
    Conflict,
    DeadlineExceeded,
    EngineError,
    LogUnavailable,
    NoSpace,
    SlimeEventsError,
    StoreUnavailable,
)
from schemas.event import Event
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutRequested,
    RolloutSuspended,
    StopReason,
)
from schemas.subjects import about, everything_about, of_type
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engine.engine import Engine, GenerateRequest
from serve_apps.generate.custom import CustomGenerate
from serve_apps.generate.journal import Desk
from serve_apps.rollout import ChunkRule, Rollout
from serve_apps.step_boundary import StepBoundary
from slime_events.incarnation import Incarnation
from slime_events.trajectory import Fetch, Trajectories
from slime_events.worker import Worker
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Append, Delivery, Fence
from storage.weights_store import WeightStore, local_folder, verify

log = logging.getLogger(__name__)

Offload = Callable[[Event], Awaitable[Event]]
"""Puts an event's large arrays into the blob store."""

LEASE_S = 10.0
WEIGHTS_DEADLINE_S = 600.0
HEALTH_DEADLINE_S = 10.0
TAKE_AT_ONCE = 4
"""Requests taken in one go: engines that are ready at the same time share what there is."""

NOT_THE_SAMPLES_FAULT = (LogUnavailable, StoreUnavailable, NoSpace)
"""What stops the whole worker: any other sample would meet it too."""


class RolloutWorker:
    """One engine's work. `run` ends with the run, or raises what went wrong.

    room: samples in flight at most. at_once: requests taken in one go. custom: makes the rollouts in place of one turn.
    lease_s: seconds until the work of a worker that is gone comes to others.
    weights_deadline_s: how long a request may wait for the weights that it asks for.
    """

    def __init__(
        self,
        worker: Worker,
        engine: Engine,
        commit: GroupCommit,
        fetch: Fetch,
        offload: Offload,
        *,
        room: int,
        rule: ChunkRule,
        at_once: int = TAKE_AT_ONCE,
        custom: CustomGenerate | None = None,
        lease_s: float = LEASE_S,
        weights_deadline_s: float = WEIGHTS_DEADLINE_S,
        weights_url: str | None = None,
    ) -> None:
        self._worker, self._engine, self._commit = worker, engine, commit
        self._fetch, self._offload, self._room, self._rule = fetch, offload, room, rule
        self._at_once, self._custom = at_once, custom
        self._lease_s, self._weights_deadline_s = lease_s, weights_deadline_s
        self._weights_url = weights_url
        self._life = worker.incarnation or Incarnation()
        self._version = -1
        self._boundary = StepBoundary(worker.log)
        self._version_changed = asyncio.Condition()
        self._active: dict[asyncio.Task[None], Delivery] = {}
        self._failed: asyncio.Queue[BaseException] = asyncio.Queue()

    async def run(self) -> None:
        """Work until the run is over. What is under way then goes back to the queue at once."""
        parts = [self._follow_weights, self._follow_boundary, self._follow_end, self._take, self._renew, self._watch]
        tasks = [asyncio.create_task(part(), name=part.__name__) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            active = list(self._active.items())
            await _end([*tasks, *self._active])
            unfinished = [delivery.release() for task, delivery in active if not _ended_well(task)]
            await asyncio.gather(*unfinished, return_exceptions=True)  # else the lease gives them back

    async def _follow_end(self) -> None:
        over = False
        async with Follower(self._worker.log, subject=about(self._worker.log.run, "run", "run")) as follower:
            while not (over and follower.caught_up):
                for recorded in await follower.next(wait_s=60.0):
                    over = self._worker.is_over(over, recorded.envelope.event)

    async def _watch(self) -> None:
        raise await self._failed.get()

    async def _follow_weights(self) -> None:
        subject = of_type(self._worker.log.run, "weights.published")
        async with Follower(self._worker.log, subject=subject) as follower:
            while True:
                events = await follower.next(wait_s=60.0)
                if events:
                    newest = events[-1].envelope
                    assert isinstance(newest.event, WeightsPublished)
                    await self._activate(newest.event, newest.at)

    def _folder_of(self, published: WeightsPublished) -> str:
        """Where a version lies: as published, or with this run's weights where the run was restored elsewhere."""
        if self._weights_url is None or local_folder(published.url).is_dir():
            return published.url
        return WeightStore(self._weights_url).folder(published.version, published.digest)

    async def _activate(self, published: WeightsPublished, published_at: int) -> None:
        """Verify the files, load them under the running requests, and say so."""
        begun = time.perf_counter()
        folder = self._folder_of(published)
        await asyncio.to_thread(verify, folder, published.digest)
        resumed = len(self._active)
        await self._engine.update_weights(folder, published.version)
        async with self._version_changed:
            self._version = published.version
            self._version_changed.notify_all()
        activated = WeightsActivated(
            version=published.version,
            engine=self._worker.id,
            digest=published.digest,
            seconds=time.perf_counter() - begun,
            lag=max(0.0, (time.time_ns() - published_at) / 1e9),
            resumed=resumed,
        )
        await self._commit.append([Append(self._worker.enclose(activated))])

    async def _follow_boundary(self) -> None:
        await self._boundary.follow(self._abort_resting)

    async def _abort_resting(self) -> None:
        """What is under way and is to rest ends at the engine, and then says what it has."""
        resting = [_rid(delivery) for delivery in self._active.values() if self._boundary.rests(delivery.recorded)]
        await asyncio.gather(*map(self._engine.abort, resting))

    async def _take(self) -> None:
        log_ = self._worker.log
        subject, life = of_type(log_.run, "rollout.requested"), self._life
        consumer = await log_.consume(life.queue, subject, lease_s=self._lease_s, start=life.requests_from)
        try:
            while True:
                free = self._room - len(self._active)
                if free <= 0:
                    await asyncio.wait(self._active, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for delivery in await consumer.take(min(free, self._at_once), wait_s=5.0):
                    task = asyncio.create_task(self._work(delivery))
                    self._active[task] = delivery
                    task.add_done_callback(self._finished)
                await asyncio.sleep(0)
        finally:
            await consumer.close()

    def _finished(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            self._active.pop(task, None)
        elif (error := task.exception()) is not None:
            self._failed.put_nowait(error)  # it stays active, so that its request is given back

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            await asyncio.gather(*(delivery.working() for delivery in list(self._active.values())))
            if not await self._is_alive():
                raise EngineError("the engine's scheduler process is gone")

    async def _is_alive(self) -> bool:
        try:
            async with asyncio.timeout(HEALTH_DEADLINE_S):  # wait_for may lose a cancellation in Python 3.11
                return await self._engine.healthy()
        except TimeoutError:
            return False

    async def _work(self, delivery: Delivery) -> None:
        """One request, to its end in the log. What this raises ends the worker."""
        request = delivery.recorded.envelope.event
        assert isinstance(request, RolloutRequested)
        rollout: Rollout | None = None
        try:
            rollout = await self._begin(request, delivery)
            if rollout is not None:
                await self._generate(rollout, delivery)
        except Conflict as conflict:
            # No ack: whoever was first does it, and if that one is gone too the request has to come again.
            log.info("%s was taken over by another engine: %s", request.sample, conflict)
            return
        except NOT_THE_SAMPLES_FAULT:
            raise
        except Exception as error:
            if not await self._is_alive():
                raise  # a dead engine fails everything: its requests are for others
            position = rollout.known.position if rollout else await self._last_position(request)
            if not await self._give_up(request, position, error, delivery):
                return
        await delivery.done()

    async def _begin(self, request: RolloutRequested, delivery: Delivery) -> Rollout | None:
        """The rollout with what the log holds of it already; None where it has ended."""
        trajectories, position = Trajectories(self._fetch), delivery.recorded.position
        trajectories.apply(request, position)
        if delivery.attempt > 1 or request.attempt > 0 or position < self._life.since:
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

    async def _await_version(self, version: int) -> None:
        if self._version >= version:
            return
        try:
            async with asyncio.timeout(self._weights_deadline_s), self._version_changed:
                await self._version_changed.wait_for(lambda: self._version >= version)
        except TimeoutError:
            raise DeadlineExceeded(
                f"waited {self._weights_deadline_s:.0f} s for weight version {version}, engine has {self._version}"
            ) from None

    async def _generate(self, rollout: Rollout, delivery: Delivery) -> None:
        request = rollout.request
        await self._await_version(request.min_version)
        if self._custom is not None:
            await self._custom.make(rollout, self._desk(rollout, delivery))
            return
        if self._boundary.rests(delivery.recorded):
            await self._append(rollout, rollout.rest(), delivery)
            return
        generate = GenerateRequest(
            rid=_rid(delivery),
            prompt=self._fetch(request.prompt),
            sampling=request.sampling,
            seed=request.seed,
            resume=rollout.known.tokens,
        )
        deltas = self._engine.generate(generate)
        async with contextlib.aclosing(deltas):  # type: ignore[type-var]  # so that a refused append ends it at once
            async for delta in deltas:
                rollout.add(delta.tokens, delta.log_probs, delta.spans)
                aborted = delta.finish is StopReason.ABORT
                if delta.finish is not None and not aborted:
                    await self._append(rollout, rollout.end(delta.finish, delta.text or ""), delivery)
                    return
                rests = self._boundary.rests(delivery.recorded)
                if rollout.due(self._rule) or ((aborted or rests) and rollout.new_length):
                    rollout.said(await self._append(rollout, rollout.chunk(), delivery))
                if rests:
                    await self._append(rollout, rollout.rest(), delivery)
                    return
                if aborted:
                    raise EngineError(f"the engine aborted {request.sample} after {rollout.length} tokens")
        raise EngineError(f"the engine ended {request.sample} without a finish reason")

    def _desk(self, rollout: Rollout, delivery: Delivery) -> Desk:
        async def say(events: Sequence[Event]) -> None:
            rollout.known.position = await self._say(events, rollout.request, rollout.known.position, delivery)

        return Desk(self._engine, self._rule, _rid(delivery), say, lambda: self._boundary.rests(delivery.recorded))

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

    async def _give_up(self, request: RolloutRequested, position: int, error: Exception, delivery: Delivery) -> bool:
        """Say why, so that the conductor can ask again or reject the group. False where another engine has it now."""
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


def _rid(delivery: Delivery) -> str:
    """A name that no other delivery of any request has."""
    request = delivery.recorded.envelope.event
    assert isinstance(request, RolloutRequested)
    return f"{request.sample}-{request.attempt}-{delivery.attempt}"


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel until all have ended: in Python 3.11 a cancellation that meets the end of a wait_for is lost."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=1.0)
    await asyncio.gather(*tasks, return_exceptions=True)


def _ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
