"""The committed steps of a run, each with its batch: one pass over the log, in order."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, NamedTuple

from schemas.doc import doc
from schemas.errors import StorageError
from schemas.groups import GroupRejected
from schemas.rewards import RewardAssigned
from schemas.steps import StepCommitted
from slime_events.core.tokens.trajectory import Fetch
from slime_events.core.training.train_batch import TrainBatch
from slime_events.loop.training.difference import Compared, Difference, commit_differences, reward_differences
from slime_events.loop.training.pending_batches import PendingBatches
from storage.log import Readable


class RecordedStep(NamedTuple):
    """A committed step."""

    committed: Annotated[StepCommitted, doc("the commit")]
    batch: Annotated[TrainBatch | None, doc("the batch; None if the log does not hold the sealed contents")]
    differences: Annotated[tuple[Difference, ...], doc("differences that the log alone shows")] = ()


async def recorded_steps(
    log: Readable, fetch: Fetch, steps: range, *, temperature: float
) -> AsyncGenerator[RecordedStep, None]:
    """Yield the committed steps among `steps`. Only rollouts of open batches are in memory.

    Raises StorageError if the log has a commit without its batch.
    """
    batches, rewards = PendingBatches(fetch, temperature=temperature), dict[str, float]()

    def forget_rewards(samples: tuple[str, ...]) -> None:
        for sample in samples:
            rewards.pop(sample, None)

    if not steps:
        return
    async for recorded in log.read():
        event = recorded.envelope.event
        if not isinstance(event, StepCommitted):
            batches.apply(event, recorded.position)
            if isinstance(event, RewardAssigned) and batches.knows(event.sample):
                rewards[event.sample] = event.value
            elif isinstance(event, GroupRejected):
                forget_rewards(event.samples)
            continue
        if event.step in steps:
            yield await asyncio.to_thread(recorded_step, batches, event, rewards)
        if event.step >= steps[-1]:
            return
        if event.step in batches.sealed:
            forget_rewards(batches.sealed[event.step].samples)
        batches.forget(event.step)


def recorded_step(batches: PendingBatches, committed: StepCommitted, rewards: Mapping[str, float]) -> RecordedStep:
    """Return a committed step with its batch. rewards: as assigned, by sample. Raises StorageError if there is no
    batch.
    """
    sealed = batches.sealed.get(committed.step)
    if sealed is None:
        raise StorageError(
            f"step {committed.step} was committed, but the log holds no batch for it. Run `slime-events audit`"
        )
    differences = reward_differences(sealed, rewards) + commit_differences(committed, sealed)
    try:
        return RecordedStep(committed, batches.make(committed.step), differences)
    except StorageError as error:
        different = Difference(Compared.BATCH, sealed.digest, "another", str(error))
        return RecordedStep(committed, None, (*differences, different))
