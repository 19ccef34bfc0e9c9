"""`Learner`: trains on the rollouts of another run. What it decides and does is in its own log.

    parent's log -> `Batches` (pure) -> batch.sealed ─┐
                                                      ├─ own log -> run.finished
    parent's rollouts -> `FollowedBatches` -> Trainer ┘  step.committed + weights.published, checkpoint.saved

A learner that replaces a killed one reads the parent's log again and gets the same batches: those in its own log are
compared, not appended again. Steps are trained and committed as in any run.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from actors.learner.followed_batches import FollowedBatches
from actors.trainer.trainer import Trainer
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import Conflict, DeadlineExceeded, LogUnavailable, StorageError
from schemas.runs import FinishReason, RunFinished
from schemas.subjects import every_event, of_type
from slime_events.core.run.participant import Participant, is_over
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.state.apply import apply
from slime_events.core.state.run import FOLD, RunState, state_digest
from slime_events.loop.learner.batches import Batches
from slime_events.loop.training.training_state import read_training_state
from storage.cancellation import check_cancelled, end_all
from storage.follow import Follower
from storage.log import Fence, Recorded

log = logging.getLogger(__name__)

LOOK_S = 0.5
OpenParent = Callable[[str], AbstractAsyncContextManager[OpenedRun]]


async def parent_records(
    where: str, *, deadline_s: float, open_parent: OpenParent = open_run
) -> AsyncGenerator[Recorded, None]:
    """The parent's whole log: an archive to its end, a run until it has ended.

    A run stops its server when it ends, and a learner may still be behind: the log is then opened again, as that of a
    run that has finished. Raises DeadlineExceeded where an unfinished run appends nothing for `deadline_s`, or its log
    does not answer for that long.
    """
    reader = _Reader(deadline_s)
    while True:
        try:
            async with open_parent(where) as parent, aclosing(reader.read(parent)) as records:
                async for recorded in records:
                    yield recorded
            return
        except LogUnavailable as error:
            reader.check_news(where)
            log.warning("the log of %s went away at position %d and is opened again: %s", where, reader.position, error)
            await asyncio.sleep(LOOK_S)


class _Reader:
    """Knows how far it is. position: of the last event that was handed out."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._over, self._news = False, time.monotonic()
        self.position = 0

    def check_news(self, where: str) -> None:
        """Raises DeadlineExceeded where there has been none for too long."""
        if time.monotonic() - self._news > self._deadline_s:
            raise DeadlineExceeded(
                f"the run at {where} has appended nothing for {self._deadline_s:.0f} s and has not ended: see whether "
                "it is on; the same command goes on from here"
            )

    async def read(self, parent: OpenedRun) -> AsyncGenerator[Recorded, None]:
        """From where it is to the end of the archive, or of the run."""
        if parent.folder is None:
            async for recorded in parent.log.read(self.position + 1):
                yield self._take(recorded)
            return
        async with Follower(parent.log, self.position + 1) as follower:
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=LOOK_S):
                    yield self._take(recorded)
                    self._news = time.monotonic()  # after the consumer has taken its time
                self.check_news(parent.where)

    def _take(self, recorded: Recorded) -> Recorded:
        self._over = is_over(self._over, recorded.envelope.event)
        self.position = recorded.position
        return recorded


LOOK_S = 0.5


class Learner:
    """parent: its log from the first event on, to where it ends (`parent_records`). The trainer's plan says how many
    steps are trained at most, those before the learner's first included. see: is shown the own log.
    """

    def __init__(
        self,
        worker: Participant,
        parent: AsyncGenerator[Recorded, None],
        batches: Batches,
        rollouts: FollowedBatches,
        trainer: Trainer,
        see: Callable[[Recorded], None] = lambda recorded: None,
    ) -> None:
        self._worker, self._parent, self._batches, self._rollouts = worker, parent, batches, rollouts
        self._trainer, self._plan, self._see = trainer, trainer.plan, see
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def run(self) -> int:
        """Train to the parent's end; the version reached. Raises what the trainer and the parent's log raise."""
        before = await read_training_state(self._worker)
        if before.over:
            return before.version
        tasks = [
            asyncio.create_task(self._seal(), name="seal"),
            asyncio.create_task(self._finish(), name="finish"),
            asyncio.create_task(self._trainer.run(), name="train"),
        ]
        try:
            check_cancelled()
            waiting = set(tasks)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            await end_all(*tasks)
        return self._end.result()

    async def _seal(self) -> None:
        """Append the batches that the parent's log gives, at the trainer's pace."""
        recorded_digests = {
            recorded.envelope.event.step: recorded.envelope.event.digest
            async for recorded in self._worker.log.read(1, of_type(self._worker.log.run, "batch.sealed"))
            if isinstance(recorded.envelope.event, BatchSealed)
        }
        end = self._batches.first
        async with aclosing(self._parent) as records:
            async for recorded in records:
                self._rollouts.read(recorded.envelope.event, recorded.position)
                taken = self._batches.apply(recorded)
                if taken.batch is not None:
                    await self._append(taken.batch, recorded_digests)
                    end = taken.batch.step + 1
                self._rollouts.take(taken)
                if end >= self._plan.steps:
                    break
                await self._rollouts.room()
        if lost := [step for step in recorded_digests if step >= end]:
            raise StorageError(
                f"the parent's log ends before its batch of step {lost[0]}, which {self._worker.log.run} "
                "has trained on or is to: open the whole of it"
            )
        self._end.set_result(end)

    async def _append(self, batch: BatchSealed, recorded_digests: dict[int, str]) -> None:
        before = recorded_digests.get(batch.step)
        if before is None:
            await self._worker.append([batch])
        elif before != batch.digest:
            raise StorageError(
                f"step {batch.step} has batch {before} in the log of {self._worker.log.run}, and its parent's "
                f"gives {batch.digest} now: one of them was changed, or other code decides"
            )

    async def _finish(self) -> None:
        """Fold the own log; once all steps are in it, append that the run is over."""
        own = self._worker.log
        state, saved = RunState(run=own.run), 0
        async with Follower(own) as follower:
            while True:
                for recorded in await follower.next(wait_s=LOOK_S):
                    apply(state, recorded)
                    self._see(recorded)
                    event = recorded.envelope.event
                    saved = max(saved, event.version) if isinstance(event, CheckpointSaved) else saved
                if self._is_complete(state, saved):
                    try:
                        await self._worker.append_fenced(
                            self._finished(state), Fence(every_event(own.run), state.events)
                        )
                        return
                    except Conflict:
                        continue  # the archivist has appended something meanwhile

    def _is_complete(self, state: RunState, saved: int) -> bool:
        if not self._end.done() or state.version < self._end.result():
            return False
        every = self._plan.checkpoint_every
        due = state.version - state.version % every if every else 0
        return due <= state.first or saved >= due

    def _finished(self, state: RunState) -> RunFinished:
        whole = state.version >= self._plan.steps
        return RunFinished(
            reason=FinishReason.ALL_STEPS if whole else FinishReason.INTERRUPTED,
            steps=state.steps,
            events=state.events,
            state_digest=state_digest(state),
            fold=FOLD,
        )
