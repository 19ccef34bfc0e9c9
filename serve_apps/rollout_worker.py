"""`RolloutWorker`: a competing consumer of `rollout.requested` around one engine. No Serve in it.

    take requests when there is room -> run at least `min_version` -> generate -> append chunks and the end -> ack
    weights.published -> verify -> retract, load, go on -> append weights.activated

There is no router and no push: an engine pulls what it has room for. The ack comes after the end is in the log, so the
work of a lost engine is delivered again and goes on from its last chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from schemas.errors import Conflict, DeadlineExceeded, EngineError, SlimeEventsError
from schemas.event import Event
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutRequested
from schemas.subjects import about, of_type
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engine.engine import Engine, GenerateRequest
from serve_apps.rollout import ChunkRule, Rollout
from slime_events.trajectory import Fetch, Trajectories
from slime_events.worker import Worker, ends_run
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Append, Delivery, Fence
from storage.weights_store import verify

log = logging.getLogger(__name__)

Offload = Callable[[Event], Awaitable[Event]]
"""Puts an event's large arrays into the blob store."""

LEASE_S = 10.0
WEIGHTS_DEADLINE_S = 600.0


class RolloutWorker:
    """One engine's work. room: samples in flight at most. `run` ends with the run, or raises what went wrong."""

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
    ) -> None:
        self._worker, self._engine, self._commit = worker, engine, commit
        self._fetch, self._offload, self._room, self._rule = fetch, offload, room, rule
        self._version = -1
        self._version_changed = asyncio.Condition()
        self._active: dict[asyncio.Task[None], Delivery] = {}
        self._ended = asyncio.Event()

    async def run(self) -> None:
        """Work until the run is over."""
        parts = [self._follow_weights, self._follow_end, self._take, self._renew]
        tasks = [asyncio.create_task(part(), name=part.__name__) for part in parts]
        ended = asyncio.create_task(self._ended.wait(), name="ended")
        try:
            done, _ = await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in [*tasks, ended, *self._active]:
                task.cancel()
            await asyncio.gather(*tasks, ended, *self._active, return_exceptions=True)

    async def _follow_end(self) -> None:
        async with Follower(self._worker.log, subject=about(self._worker.log.run, "run", "run")) as follower:
            while True:
                if any(ends_run(recorded, follower) for recorded in await follower.next(wait_s=60.0)):
                    self._ended.set()

    async def _follow_weights(self) -> None:
        subject = of_type(self._worker.log.run, "weights.published")
        async with Follower(self._worker.log, subject=subject) as follower:
            while True:
                events = await follower.next(wait_s=60.0)
                if events:
                    newest = events[-1].envelope
                    assert isinstance(newest.event, WeightsPublished)
                    await self._activate(newest.event, newest.at)

    async def _activate(self, published: WeightsPublished, published_at: int) -> None:
        """Verify the files, load them under the running requests, and say so."""
        begun = time.perf_counter()
        await asyncio.to_thread(verify, published.url, published.digest)
        resumed = len(self._active)
        await self._engine.update_weights(published.url, published.version)
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

    async def _take(self) -> None:
        log_ = self._worker.log
        consumer = await log_.consume("engines", of_type(log_.run, "rollout.requested"), lease_s=LEASE_S)
        try:
            while True:
                free = self._room - len(self._active)
                if free <= 0:
                    await asyncio.wait(self._active, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for delivery in await consumer.take(free, wait_s=5.0):
                    task = asyncio.create_task(self._work(delivery))
                    self._active[task] = delivery
                    task.add_done_callback(self._finished)
        finally:
            await consumer.close()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._active.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a rollout ended badly", exc_info=task.exception())

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            if not await self._engine.healthy():
                raise EngineError("the engine's scheduler process is gone")
            await asyncio.gather(*(delivery.working() for delivery in list(self._active.values())))

    async def _work(self, delivery: Delivery) -> None:
        request = delivery.recorded.envelope.event
        assert isinstance(request, RolloutRequested)
        rollout = await self._begin(request, delivery)
        if rollout is not None:
            try:
                await self._generate(rollout, delivery)
            except Conflict as conflict:
                log.info("%s was taken over by another engine: %s", request.sample, conflict)
            except SlimeEventsError as error:
                await self._give_up(rollout, error, delivery)
        await delivery.done()

    async def _begin(self, request: RolloutRequested, delivery: Delivery) -> Rollout | None:
        """The rollout with what the log holds of it already; None where it has ended."""
        log_, run = self._worker.log, self._worker.log.run
        trajectories = Trajectories(self._fetch)
        trajectories.apply(request, delivery.recorded.position)
        if delivery.attempt > 1 or request.attempt > 0:
            subject = about(run, "rollout", request.sample)
            async for recorded in log_.read(1, subject):
                event = recorded.envelope.event
                if isinstance(event, RolloutCompleted) or (
                    isinstance(event, RolloutFailed) and event.attempt >= request.attempt
                ):
                    return None
                trajectories.apply(event, recorded.position)
        rollout = Rollout(request, trajectories.by_sample[request.sample], self._worker.id)
        rollout.queued = max(0.0, (time.time_ns() - delivery.recorded.envelope.at) / 1e9)
        return rollout

    async def _await_version(self, version: int) -> None:
        if self._version >= version:
            return
        async with self._version_changed:
            waiting = self._version_changed.wait_for(lambda: self._version >= version)
            try:
                await asyncio.wait_for(waiting, WEIGHTS_DEADLINE_S)
            except TimeoutError:
                raise DeadlineExceeded(
                    f"waited {WEIGHTS_DEADLINE_S:.0f} s for weight version {version}, engine has {self._version}"
                ) from None

    async def _generate(self, rollout: Rollout, delivery: Delivery) -> None:
        request = rollout.request
        await self._await_version(request.min_version)
        generate = GenerateRequest(
            rid=f"{request.sample}-{request.attempt}-{delivery.attempt}",
            prompt=self._fetch(request.prompt),
            sampling=request.sampling,
            seed=request.seed,
            resume=rollout.known.tokens,
        )
        async for delta in self._engine.generate(generate):
            rollout.add(delta.tokens, delta.log_probs, delta.spans)
            if delta.finish is not None:
                await self._append(rollout, rollout.end(delta.finish, delta.text or ""), delivery)
                return
            if rollout.due(self._rule):
                rollout.said(await self._append(rollout, rollout.chunk(), delivery))
        raise EngineError(f"the engine ended {request.sample} without a finish reason")

    async def _append(self, rollout: Rollout, event: Event, delivery: Delivery) -> int:
        fence = Fence(about(self._worker.log.run, "rollout", rollout.request.sample), rollout.known.position)
        envelope = self._worker.enclose(await self._offload(event), cause=delivery.recorded.envelope.id)
        return (await self._commit.append([Append(envelope, fence)]))[0]

    async def _give_up(self, rollout: Rollout, error: SlimeEventsError, delivery: Delivery) -> None:
        """Say why, so that the conductor can ask again or reject the group."""
        kind = FailureKind.ENGINE if isinstance(error, EngineError | DeadlineExceeded) else FailureKind.INVALID
        log.warning("%s failed: %s", rollout.request.sample, error)
        with contextlib.suppress(Conflict):
            await self._append(rollout, rollout.fail(kind, str(error)), delivery)
