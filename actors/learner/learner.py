"""`Learner`: trains on the rollouts of another run, and records its own decisions and steps in its own log.

    parent's log -> `Batches` (pure) -> batch.sealed ─┐
                                                      ├─ own log -> run.finished
    parent's rollouts -> `FollowedBatches` -> Trainer ┘  step.committed + weights.published, checkpoint.saved

A learner that replaces a killed learner reads the parent's log again and gets the same batches: batches that its own
log has are compared, not appended again. Steps are trained and committed as in any run.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from actors.conductor import append_finished
from actors.learner.followed_batches import FollowedBatches
from actors.trainer.trainer import Trainer
from schemas.batches import BatchSealed
from schemas.checkpoints import CheckpointSaved
from schemas.errors import Conflict, DeadlineExceeded, LogUnavailable, StorageError
from schemas.runs import FinishReason
from schemas.subjects import of_type
from slime_events.core.run.participant import Participant, is_over
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from slime_events.loop.learner.batches import Batches
from slime_events.loop.training.training_state import read_training_state
from storage.cancellation import check_cancelled, end_all
from storage.follow import Follower
from storage.log import Recorded

log = logging.getLogger(__name__)

LOOK_S = 0.5
OpenParent = Callable[[str], AbstractAsyncContextManager[OpenedRun]]


async def parent_records(
    where: str, *, deadline_s: float, open_parent: OpenParent = open_run
) -> AsyncGenerator[Recorded, None]:
    """Yield the parent's whole log: an archive to its end, a live run until it has ended.

    A run stops its server when it ends, while a learner may still be behind: the log is then opened again as that of a
    finished run. Raises DeadlineExceeded if an unfinished run appends nothing, or its log does not answer, for
    `deadline_s`.
    """
    position, over, news = 0, False, time.monotonic()

    def check_news() -> None:
        if time.monotonic() - news > deadline_s:
            raise DeadlineExceeded(
                f"the run at {where} has appended nothing for {deadline_s:.0f} s and has not ended: check that it is "
                "running; the same command continues from here"
            )

    while True:
        try:
            async with open_parent(where) as parent:
                if parent.folder is None:
                    async for recorded in parent.log.read(position + 1):
                        position = recorded.position
                        yield recorded
                    return
                async with Follower(parent.log, position + 1) as follower:
                    while not (over and follower.caught_up):
                        for recorded in await follower.next(wait_s=LOOK_S):
                            position, over = recorded.position, is_over(over, recorded.envelope.event)
                            yield recorded
                            news = time.monotonic()  # after the consumer has taken its time
                        check_news()
                return
        except LogUnavailable as error:
            check_news()
            log.warning("lost the log of %s at position %d; opening it again: %s", where, position, error)
            await asyncio.sleep(LOOK_S)


class Learner:
    """Seals batches from the parent's log, trains them, and ends the run.

    parent: the parent's whole log (`parent_records`). trainer: its plan limits the steps, which include those before
    the learner's first. see: called with each record of the own log.
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
        """Train to the parent's end; return the last version. Raises errors of the trainer and of the parent's log."""
        before = await read_training_state(self._worker)
        if before.over:
            return before.version
        tasks = [asyncio.create_task(role) for role in (self._seal(), self._finish(), self._trainer.run())]
        try:
            check_cancelled()
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in ended:
                task.result()
        finally:
            await end_all(*tasks)
        return self._end.result()

    async def _seal(self) -> None:
        """Append the batches of the parent's log, at the trainer's pace."""
        run, end = self._worker.log.run, self._batches.first
        digests = {
            recorded.envelope.event.step: recorded.envelope.event.digest
            async for recorded in self._worker.log.read(1, of_type(run, "batch.sealed"))
            if isinstance(recorded.envelope.event, BatchSealed)
        }
        async with aclosing(self._parent) as records:
            async for recorded in records:
                self._rollouts.read(recorded.envelope.event, recorded.position)
                taken = self._batches.apply(recorded)
                if (batch := taken.batch) is not None:
                    before = digests.get(batch.step)
                    if before is None:
                        await self._worker.append([batch])
                    elif before != batch.digest:
                        raise StorageError(
                            f"step {batch.step} has batch {before} in the log of {run}, but its parent's log now gives "
                            f"{batch.digest}: one of the logs was changed, or the code that decides has changed"
                        )
                    end = batch.step + 1
                self._rollouts.take(taken)
                if end >= self._plan.steps:
                    break
                await self._rollouts.room()
        if lost := [step for step in digests if step >= end]:
            raise StorageError(
                f"the parent's log ends before its batch of step {lost[0]}, which is sealed in {run}: open the whole "
                "log"
            )
        self._end.set_result(end)

    async def _finish(self) -> None:
        """Fold the own log and, when it has all steps, append that the run is over."""
        own = self._worker.log
        state, saved = RunState(run=own.run), 0
        async with Follower(own) as follower:
            while True:
                for recorded in await follower.next(wait_s=LOOK_S):
                    apply(state, recorded)
                    self._see(recorded)
                    event = recorded.envelope.event
                    saved = max(saved, event.version) if isinstance(event, CheckpointSaved) else saved
                due = self._plan.saves.newest(state.version)
                is_trained = self._end.done() and state.version >= self._end.result() and not state.to_store
                if is_trained and (due <= state.first or saved >= due):
                    reason = FinishReason.ALL_STEPS if state.version >= self._plan.steps else FinishReason.INTERRUPTED
                    # If the archivist appends an event meanwhile, read it and try again.
                    with contextlib.suppress(Conflict):
                        await append_finished(self._worker, state, reason)
                        return
