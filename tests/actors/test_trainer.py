"""The trainer's shell by itself; whole runs of it are in tests/simulation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from actors.trainer import Trainer
from schemas.arrays import unpack
from schemas.errors import TrainerError
from schemas.steps import StepCommitted
from slime_events.worker import Worker
from storage.memory_log import MemoryLog
from storage.weights_store import WeightStore
from tests.simulation.parts import ScriptedRanks


async def test_of_two_trainers_the_one_that_is_behind_ends_with_a_reason(tmp_path: Path) -> None:
    log = MemoryLog("demo")
    step = StepCommitted(
        step=0,
        batch_digest="",
        parent_version=0,
        version=1,
        weights_digest="",
        optimizer_digest="",
        samples=0,
        tokens=0,
    )
    trainer = Trainer(
        Worker(log, "trainer"),
        ScriptedRanks(),
        WeightStore(str(tmp_path), durable=False),
        unpack,
        temperature=1.0,
        publish_every=1,
        checkpoint_every=None,
        checkpoints="",
        steps=2,
    )
    task = asyncio.create_task(trainer.run())
    async with asyncio.timeout(10):
        await anext(log.read(follow=True))
        await Worker(log, "trainer", "trainer-other").say([step])
        with pytest.raises(TrainerError, match="step 0 was committed by trainer-other"):
            await task
