"""`FollowedBatches`: a learner's pending batches, which its own log names and its parent's rollouts fill."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.rollouts import RolloutRequested, WeightSpan
from slime_events.core.tokens.trajectory import Fetch, Trajectory
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.learner.batches import DerivedBatch
from slime_events.loop.training.pending_batches import PendingBatches, build_batch

AHEAD = 4
"""Batches whose rollouts are held in memory; later rollouts stay in the parent's log."""


class FollowedBatches(PendingBatches):
    """Folds batches of the learner's log and rollouts of the parent's log.

    shared: the newest version that both runs have.
    """

    folded = (BatchSealed,)

    def __init__(self, fetch: Fetch, *, temperature: float, shared: int) -> None:
        super().__init__(fetch, temperature=temperature)
        self._shared = shared
        self._whole: dict[int, BatchSealed] = {}
        self._done: set[int] = set()
        self._changed = asyncio.Event()

    def apply(self, event: Event, position: int) -> None:
        """Fold the next event of the learner's own log."""
        if isinstance(event, BatchSealed):
            self.sealed[event.step] = event

    def read(self, event: Event, position: int) -> None:
        """Fold the next event of the parent's log."""
        if not (isinstance(event, RolloutRequested) and event.purpose is not Purpose.TRAIN):
            self._trajectories.apply(event, position)

    def take(self, taken: DerivedBatch) -> None:
        """Drop rollouts that no batch needs, and mark the batch of `taken`, whose rollouts are complete."""
        self._trajectories.forget(taken.unused)
        if taken.batch is None:
            return
        if taken.batch.step in self._done:
            self._trajectories.forget(taken.batch.samples)
        else:
            self._whole[taken.batch.step] = taken.batch
            self._changed.set()

    async def room(self) -> None:
        """Wait until the trainer has trained enough batches to hold the rollouts of another."""
        await self._until(lambda: len(self._whole) < AHEAD)

    async def when_ready(self, step: int) -> TrainBatch:
        """Wait until the parent's log is read that far, and `make` the batch. The log's reader has a deadline."""
        await self._until(lambda: step in self._whole)
        return self.make(step)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def make(self, step: int) -> TrainBatch:
        """Return the batch of a step. Raises StorageError if the parent's log does not hold exactly what was sealed."""
        sealed, trajectories = self.sealed[step], self._trajectories.by_sample
        shared = {name: _as_seen(trajectories[name], self._shared) for name in sealed.samples if name in trajectories}
        return build_batch(sealed, shared, self._fetch, temperature=self._temperature)

    def forget(self, step: int) -> None:
        """Drop the rollouts of a trained step, including those not yet read from the parent's log."""
        super().forget(step)
        self._done.add(step)
        if (whole := self._whole.pop(step, None)) is not None:
            self._trajectories.forget(whole.samples)
            self._changed.set()


def _as_seen(trajectory: Trajectory, shared: int) -> Trajectory:
    """Return a parent's rollout with the spans that are newer than the shared version clamped to it."""
    spans = tuple(WeightSpan(span.start, span.end, min(span.version, shared)) for span in trajectory.spans)
    return replace(trajectory, spans=spans)
