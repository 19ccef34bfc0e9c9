"""`RolloutWorker`: a competing consumer of `rollout.requested` around one engine. No Serve in it.

    take requests when there is room -> run at least `min_version` -> generate -> append chunks and the end -> ack
    weights.published -> verify -> retract, load, go on -> append weights.activated (`EngineWeights`)
    batch.sealed that suspends -> append the chunk and rollout.suspended of what is under way -> ack

There is no router and no push: an engine pulls what it has room for. The ack comes after the end is in the log, so the
work of a lost engine is delivered again and goes on from its last chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from schemas.errors import Conflict, EngineError, LogUnavailable, NoSpace, StoreUnavailable
from schemas.rollouts import RolloutRequested
from schemas.subjects import about, of_type
from serve_apps.engine.engine import Engine
from serve_apps.engine_weights import EngineWeights
from serve_apps.generate.custom import CustomGenerate
from serve_apps.inline_rewards import OwnRewards
from serve_apps.rollout import ChunkRule, Rollout
from serve_apps.rollout_maker import Offload, RolloutMaker, rid_of
from serve_apps.step_boundary import StepBoundary
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.trajectory import Fetch
from storage.cancellation import end_all
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Delivery

log = logging.getLogger(__name__)

LEASE_S = 10.0
HEALTH_DEADLINE_S = 10.0
TAKE_AT_ONCE = 4
"""Requests taken in one go: engines that are ready at the same time share what there is."""

NOT_THE_SAMPLES_FAULT = (LogUnavailable, StoreUnavailable, NoSpace)
"""What stops the whole worker: any other sample would meet it too."""


class RolloutWorker:
    """One engine's work. `run` ends with the run, or raises what went wrong.

    room: samples in flight at most. at_once: requests taken in one go. custom: makes the rollouts in place of one turn.
    rewards: those that this engine gives its own rollouts; by default all are the grader's.
    lease_s: seconds until the work of a worker that is gone comes to others.
    """

    def __init__(
        self,
        worker: Participant,
        engine: Engine,
        commit: GroupCommit,
        fetch: Fetch,
        offload: Offload,
        *,
        weights: EngineWeights,
        room: int,
        rule: ChunkRule,
        at_once: int = TAKE_AT_ONCE,
        custom: CustomGenerate | None = None,
        rewards: OwnRewards | None = None,
        lease_s: float = LEASE_S,
    ) -> None:
        self._worker, self._engine = worker, engine
        self._room, self._at_once, self._lease_s = room, at_once, lease_s
        self._life = worker.incarnation or Incarnation()
        self._active: dict[asyncio.Task[None], Delivery] = {}
        self._newest: dict[str, asyncio.Task[None]] = {}
        self._boundary = StepBoundary(worker.log)
        self._weights = weights
        self._maker = RolloutMaker(
            worker,
            engine,
            commit,
            fetch,
            offload,
            rule=rule,
            weights=weights,
            boundary=self._boundary,
            custom=custom,
            rewards=rewards,
        )
        self._failed: asyncio.Queue[BaseException] = asyncio.Queue()

    async def run(self) -> None:
        """Work until the run is over. What is under way then goes back to the queue at once."""
        parts = [self._weights.follow, self._weights.switch, self._follow_boundary, self._follow_end, self._take]
        parts += [self._renew, self._watch]
        tasks = [asyncio.create_task(part(), name=part.__name__) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            active = list(self._active.items())
            await end_all(*tasks, *self._active)
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

    async def _follow_boundary(self) -> None:
        await self._boundary.follow(self._abort_resting)

    async def _abort_resting(self) -> None:
        """What is under way and is to rest ends at the engine, and then says what it has."""
        resting = [rid_of(delivery) for delivery in self._active.values() if self._boundary.rests(delivery.recorded)]
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
                    self._begin(delivery)
                await asyncio.sleep(0)
        finally:
            await consumer.close()

    def _begin(self, delivery: Delivery) -> None:
        """Work on a request; where it is worked on here already, once that has ended: a server that was killed may have
        forgotten what it gave out, and gives it out again as if for the first time. The earlier one ends at the latest
        with this worker, which looks after its engine.
        """
        sample = delivery.recorded.envelope.event.entity()
        task = asyncio.create_task(self._work(delivery, after=self._newest.get(sample)))
        self._active[task] = delivery
        self._newest[sample] = task
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        sample = self._active[task].recorded.envelope.event.entity()
        if self._newest.get(sample) is task:
            del self._newest[sample]
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
        """It is asked twice: while the machine pauses, the time for one answer passes."""
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEALTH_DEADLINE_S):
                    if await self._engine.healthy():
                        return True
        return False

    async def _work(self, delivery: Delivery, *, after: asyncio.Task[None] | None) -> None:
        """One request, to its end in the log. What this raises ends the worker."""
        request = delivery.recorded.envelope.event
        assert isinstance(request, RolloutRequested)
        if request.recalls:  # a recorded rollout is the answer
            await delivery.done()
            return
        rollout: Rollout | None = None
        try:
            if after is not None:
                await asyncio.wait({after})
            rollout = await self._maker.begin(request, delivery, again=after is not None)
            if rollout is not None:
                await self._maker.make(rollout, delivery)
        except Conflict as conflict:
            # No ack: whoever was first does it, and if that one is gone too the request has to come again.
            log.info("%s was taken over by another engine: %s", request.sample, conflict)
            return
        except NOT_THE_SAMPLES_FAULT:
            raise
        except Exception as error:
            if not await self._is_alive():
                raise  # a dead engine fails everything: its requests are for others
            if not await self._maker.give_up(request, rollout, error, delivery):
                return
        await delivery.done()


def _ended_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
