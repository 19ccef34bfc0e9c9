"""Steps of a log trained again by ranks whose weights are digests: equal, or the first that is not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from actors.offline.retrainer import ranks_at, retrain_steps, same_digests
from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import RunNotFound, TrainerError
from slime_events.analysis.retrain.recorded_steps import RecordedStep, recorded_steps
from slime_events.analysis.retrain.version_chain import read_chain
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.loop.training.difference import Compared, Difference, Retrained
from storage.weights.shards import TensorBytes
from tests.retrain.changed import Care, as_log, flip_reward
from tests.retrain.conftest import STEPS, Recorded
from tests.simulation.parts import ScriptedRanks


async def retrain(run: OpenedRun, steps: range, ranks: ScriptedRanks) -> tuple[list[Retrained], Retrained | None]:
    """Return the steps that were judged, and the first that differs."""
    judged: list[Retrained] = []
    stream = recorded_steps(run.log, run.fetch, steps, temperature=1.0)
    return judged, await retrain_steps(ranks, same_digests, stream, judged.append)


async def test_every_step_comes_out_as_it_was_committed(recorded: Recorded) -> None:
    ranks = ScriptedRanks()
    judged, wrong = await retrain(recorded.opened(), range(STEPS), ranks)
    assert wrong is None
    assert [step.step for step in judged] == list(range(STEPS))
    assert [batch.step for batch in ranks.trained] == list(range(STEPS))


@pytest.mark.parametrize(
    ("care", "compared", "trained"),
    [
        (Care.ASSIGNED, [Compared.REWARDS], [0, 1, 2]),
        (Care.SEALED, [Compared.BATCH], [0, 1]),
        (Care.DIGEST, [Compared.COMMITTED_BATCH, Compared.WEIGHTS, Compared.OPTIMIZER], [0, 1, 2]),
        (Care.COMMITTED, [Compared.WEIGHTS, Compared.OPTIMIZER], [0, 1, 2]),
    ],
)
async def test_one_flipped_reward_is_found_at_its_step(
    recorded: Recorded, care: Care, compared: list[Compared], trained: list[int]
) -> None:
    log, ranks = recorded.doctored(), ScriptedRanks()
    sample = flip_reward(log, 2, care)
    judged, wrong = await retrain(recorded.opened(await as_log(log)), range(STEPS), ranks)
    assert wrong is not None
    assert [bool(step.differences) for step in judged] == [False, False, True]
    assert (wrong.step, [difference.compared for difference in wrong.differences]) == (2, compared)
    assert care is not Care.ASSIGNED or sample in str(wrong.differences[0])
    # The next step may have been trained already while this one was judged.
    assert [batch.step for batch in ranks.trained][: len(trained)] == trained


@pytest.mark.parametrize(
    ("version", "from_base", "trained"),
    [(0, False, []), (1, False, [0]), (4, False, []), (5, False, [4]), (4, True, [0, 1, 2, 3])],
)
async def test_ranks_begin_with_the_nearest_checkpoint(
    recorded: Recorded, version: int, from_base: bool, trained: list[int]
) -> None:
    ranks, chain = ScriptedRanks(disk=recorded.disk), await read_chain(recorded.log)
    digests = await ranks_at(recorded.opened(), version, ranks, from_base=from_base)
    assert [batch.step for batch in ranks.trained] == trained
    if version:
        assert digests == chain.trained.committed[version]
    assert digests.weights == chain.trained.published[version].digest


async def test_a_checkpoint_that_is_gone_is_passed_over(recorded: Recorded) -> None:
    ranks = ScriptedRanks()
    assert await ranks_at(recorded.opened(), 3, ranks) == (await read_chain(recorded.log)).trained.committed[3]
    assert [batch.step for batch in ranks.trained] == [0, 1, 2]


async def test_ranks_stop_at_the_step_that_is_otherwise(recorded: Recorded) -> None:
    log = recorded.doctored()
    flip_reward(log, 1, Care.COMMITTED)
    with pytest.raises(TrainerError, match="step 1 of run sim differs from what was committed: weights"):
        await ranks_at(recorded.opened(await as_log(log)), 3, ScriptedRanks())


async def test_another_base_is_named(recorded: Recorded) -> None:
    ranks = ScriptedRanks()
    ranks.weights = b"1" * 32
    with pytest.raises(TrainerError, match="but the base checkpoint has"):
        await ranks_at(recorded.opened(), 1, ranks)


class InPlace(ScriptedRanks):
    """Weights that every step changes where they lie, as a rank of this very process does."""

    def __init__(self) -> None:
        super().__init__()
        self._buffer = bytearray(32)
        self.steps_begun = [threading.Event() for _ in range(STEPS)]

    async def train(self, batch: TrainBatch) -> StepResult:
        result = await super().train(batch)
        self._buffer[:] = self.weights
        self.steps_begun[batch.step].set()
        return result

    async def export_weights(self) -> list[TensorBytes]:
        return [("w", "F32", (8,), memoryview(self._buffer))]


async def test_a_step_is_judged_by_its_own_weights_while_the_next_one_changes_them(recorded: Recorded) -> None:
    ranks = InPlace()

    def judge(
        step: RecordedStep, result: StepResult, tensors: list[TensorBytes]
    ) -> tuple[tuple[Difference, ...], None]:
        if step.committed.version < STEPS:
            assert ranks.steps_begun[step.committed.version].wait(60)
        return same_digests(step, result, tensors)

    steps = recorded_steps(recorded.log, unpack, range(STEPS), temperature=1.0)
    assert await retrain_steps(ranks, judge, steps) is None


async def test_a_version_that_was_not_made_is_named(recorded: Recorded) -> None:
    with pytest.raises(RunNotFound, match="no weight version 6: there are 0 to 5"):
        await ranks_at(recorded.opened(), 6, ScriptedRanks())


async def test_a_batch_is_built_while_the_one_before_trains_and_no_more_than_that(recorded: Recorded) -> None:
    sealed = [r.envelope.event for r in recorded.log.records if isinstance(r.envelope.event, BatchSealed)]
    built: list[int] = []
    there = [asyncio.Event() for _ in range(STEPS)]
    ahead: list[int] = []

    async def steps():  # type: ignore[no-untyped-def]
        async for step in recorded_steps(recorded.log, unpack, range(STEPS), temperature=1.0):
            built.append(step.committed.step)
            there[step.committed.step].set()
            yield step

    class Slow(ScriptedRanks):
        async def train(self, batch: TrainBatch) -> StepResult:
            if batch.step < STEPS - 1:
                await asyncio.wait_for(there[batch.step + 1].wait(), 60)
            await asyncio.sleep(0.01)  # for one too many
            ahead.append(built[-1] - batch.step)
            return await super().train(batch)

    assert await retrain_steps(Slow(), same_digests, steps()) is None
    assert ahead == [1] * (len(sealed) - 1) + [0]


@pytest.mark.parametrize(
    ("text", "steps"),
    [(None, range(5)), ("1:3", range(1, 4)), ("3:", range(3, 5)), (":1", range(2)), ("4", range(4, 5))],
)
async def test_steps_are_chosen(recorded: Recorded, text: str | None, steps: range) -> None:
    assert (await read_chain(recorded.log)).parse_steps(text) == steps
