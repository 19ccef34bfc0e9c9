"""The committed steps of a run, each with the batch that it was trained on: one pass over the log, in order."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from schemas.errors import StorageError
from schemas.event import Event
from schemas.groups import GroupRejected
from schemas.rewards import RewardAssigned
from schemas.steps import StepCommitted
from slime_events.analysis.retrain.difference import Compared, Difference, commit_differences, reward_differences
from slime_events.core.train_batch import TrainBatch
from slime_events.core.trajectory import Fetch
from slime_events.loop.training.pending_batches import PendingBatches
from storage.log import Readable


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """batch: None where the log does not hold what was sealed. differences: those that the log alone shows."""

    committed: StepCommitted
    batch: TrainBatch | None
    differences: tuple[Difference, ...] = ()


async def recorded_steps(
    log: Readable, fetch: Fetch, steps: range, *, temperature: float
) -> AsyncGenerator[RecordedStep, None]:
    """Those of `steps`, which are committed. Only rollouts of open batches are in memory.

    Raises StorageError where the log has a commit without its batch.
    """
    reader = _Reader(fetch, temperature)
    if not steps:
        return
    async for recorded in log.read():
        event = recorded.envelope.event
        if not isinstance(event, StepCommitted):
            reader.apply(event, recorded.position)
            continue
        if event.step in steps:
            yield await asyncio.to_thread(reader.step, event)
        if event.step >= steps[-1]:
            return
        reader.forget(event.step)


def recorded_step(batches: PendingBatches, committed: StepCommitted, rewards: Mapping[str, float]) -> RecordedStep:
    """A committed step with its batch. rewards: as assigned, by sample. Raises StorageError where there is no batch."""
    sealed = batches.sealed.get(committed.step)
    if sealed is None:
        raise StorageError(f"step {committed.step} was committed, but the log holds no batch of it: audit the run")
    differences = reward_differences(sealed, rewards) + commit_differences(committed, sealed)
    try:
        return RecordedStep(committed, batches.make(committed.step), differences)
    except StorageError as error:
        different = Difference(Compared.BATCH, sealed.digest, "another", str(error))
        return RecordedStep(committed, None, (*differences, different))


class _Reader:
    def __init__(self, fetch: Fetch, temperature: float) -> None:
        self._open = PendingBatches(fetch, temperature=temperature)
        self._rewards: dict[str, float] = {}

    def apply(self, event: Event, position: int) -> None:
        self._open.apply(event, position)
        if isinstance(event, RewardAssigned) and self._open.knows(event.sample):
            self._rewards[event.sample] = event.value
        elif isinstance(event, GroupRejected):
            self._drop(event.samples)

    def step(self, committed: StepCommitted) -> RecordedStep:
        return recorded_step(self._open, committed, self._rewards)

    def forget(self, step: int) -> None:
        if step in self._open.sealed:
            self._drop(self._open.sealed[step].samples)
        self._open.forget(step)

    def _drop(self, samples: tuple[str, ...]) -> None:
        for sample in samples:
            self._rewards.pop(sample, None)
