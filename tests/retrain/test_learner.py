"""Steps of a learner trained again: its batches stand in its own log, their rollouts in its parent's."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.learner.followed_batches import FollowedBatches
from actors.offline.retrainer import followed_steps, retrain_steps, same_digests
from actors.trainer.checkpoints import CheckpointFolders
from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.errors import StorageError
from slime_events.analysis.retrain.version_chain import read_chain
from slime_events.loop.learner.overrides import Overrides
from storage.memory_log import MemoryLog
from tests.learner.learning import Learning
from tests.retrain.conftest import STEPS, Recorded
from tests.simulation.parts import ScriptedRanks

BEGINS = 1


async def learned(recorded: Recorded, folder: Path) -> Learning:
    """From version 1 on, without a sample of step 2 and all groups of step 3."""
    batches = [r.envelope.event for r in recorded.log.records if isinstance(r.envelope.event, BatchSealed)]
    changes = Overrides(frozenset(batches[2].samples[:1]), frozenset(batches[3].groups))
    learning = Learning(recorded.log, folder, changes, version=BEGINS, where="sim")
    await learning.begin()
    await learning.run()
    return learning


async def again(learning: Learning, parent: MemoryLog) -> list[int]:
    """Train it again from where it began; the steps that came out the same."""
    ranks = ScriptedRanks(disk=learning.ranks.disk)
    await ranks.load_checkpoint(CheckpointFolders(str(learning.folder / "checkpoints")).of(BEGINS))
    chain, same = await read_chain(learning.log), []
    assert chain.started is not None
    assert chain.started.branched is not None
    batches = FollowedBatches(unpack, temperature=1.0, shared=BEGINS)
    steps = followed_steps(learning.log, parent, batches, range(BEGINS, STEPS), chain.started.branched)
    assert await retrain_steps(ranks, same_digests, steps, lambda step: same.append(step.step)) is None
    assert not batches.sealed
    return same


async def test_it_comes_to_the_same_digests(recorded: Recorded, tmp_path: Path) -> None:
    learning = await learned(recorded, tmp_path)
    assert await again(learning, recorded.log) == [1, 2, 3, 4]


async def test_rollouts_that_the_parent_has_lost_are_named(recorded: Recorded, tmp_path: Path) -> None:
    learning = await learned(recorded, tmp_path)
    torn = MemoryLog("sim")
    await torn.restore(recorded.log.records[: len(recorded.log.records) // 2])
    with pytest.raises(StorageError, match=r"step \d of run second was .*that are not in the log of sim"):
        await again(learning, torn)
