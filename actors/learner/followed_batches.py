"""`FollowedBatches`: a learner's pending batches: named by its own log, made of its parent's rollouts."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from schemas.batches import BatchSealed
from schemas.event import Event, Purpose
from schemas.rollouts import RolloutRequested, WeightSpan
from slime_events.core.train_batch import TrainBatch
from slime_events.core.trajectory import Fetch, Trajectory
from slime_events.loop.learner.batches import DerivedBatch
from slime_events.loop.training.pending_batches import PendingBatches, build_batch

AHEAD = 4
"""Batches whose rollouts are held at a time; later ones stay in the parent's log."""


class FollowedBatches(PendingBatches):
    """shared: the newest version that both runs have."""

    folded = (BatchSealed,)

    def __init__(self, fetch: Fetch, *, temperature: float, shared: int) -> None:
        super().__init__(fetch, temperature=temperature)
        self._shared = shared
        self._whole: dict[int, BatchSealed] = {}
        self._done: set[int] = set()
        self._changed = asyncio.Event()

    def apply(self, event: Event, position: int) -> None:
        """Fold the next event of the learner's own log in."""
        if isinstance(event, BatchSealed):
            self.sealed[event.step] = event

    def read(self, event: Event, position: int) -> None:
        """Fold the next event of the parent's log in."""
        if not (isinstance(event, RolloutRequested) and event.purpose is not Purpose.TRAIN):
            self._trajectories.apply(event, position)

    def take(self, taken: DerivedBatch) -> None:
        """Drop rollouts that no batch needs; a batch that is taken has all its rollouts now."""
        self._trajectories.forget(taken.unused)
        if taken.batch is None:
            return
        if taken.batch.step in self._done:
            self._trajectories.forget(taken.batch.samples)
        else:
            self._whole[taken.batch.step] = taken.batch
            self._changed.set()

    async def room(self) -> None:
        """Wait until the rollouts of another batch may be held: until the trainer has trained one."""
        await self._until(lambda: len(self._whole) < AHEAD)

    async def made(self, step: int) -> TrainBatch:
        """`make`, once the parent's log was read that far. Its reader has a deadline."""
        await self._until(lambda: step in self._whole)
        return self.make(step)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def make(self, step: int) -> TrainBatch:
        """The batch of a step. Raises StorageError where the parent's log does not hold exactly what was sealed."""
        sealed, known = self.sealed[step], self._trajectories.by_sample
        shared = {name: _as_seen(known[name], self._shared) for name in sealed.samples if name in known}
        return build_batch(sealed, shared, self._fetch, temperature=self._temperature)

    def forget(self, step: int) -> None:
        """Drop the rollouts of a trained step, also those that the parent's log is yet to give."""
        super().forget(step)
        self._done.add(step)
        if (whole := self._whole.pop(step, None)) is not None:
            self._trajectories.forget(whole.samples)
            self._changed.set()


def _as_seen(trajectory: Trajectory, shared: int) -> Trajectory:
    """A parent's rollout with spans newer than the shared version clamped to it."""
    spans = tuple(WeightSpan(span.start, span.end, min(span.version, shared)) for span in trajectory.spans)
    return replace(trajectory, spans=spans)
