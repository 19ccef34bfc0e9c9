"""Megatron behind the trainer's shell: a trainer that takes over comes to the same digests."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.trainer.ranks import rendezvous_address
from actors.trainer.ray_ranks import RayRanks
from schemas.checkpoints import CheckpointSaved
from schemas.steps import StepCommitted
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.state.run import RunPhase
from tests.megatron.tiny import make_model, settings_for
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

STEPS = 3
SCHEDULE = {"lr_warmup_iters": 1, "lr_decay_style": "cosine", "lr_decay_iters": 10}


async def ranks_of(model: Path) -> RayRanks:
    ranks = RayRanks([])
    await ranks.start(settings_for(model, **SCHEDULE), AlgorithmSettings(), rendezvous_address())
    return ranks


async def run(
    folder: Path, model: Path, *, every: int | None = None, kill: bool = False, tear: bool = False
) -> Simulation:
    """A run of three steps; its trainer is killed after two of them, its last checkpoint torn."""
    folder.mkdir()
    ranks = await ranks_of(model)
    async with Simulation(folder, make_plan(steps=STEPS, checkpoint_every=every), ranks=ranks) as sim:
        sim.start_engine(Script(chunk=24, vocabulary=128))
        if kill:
            await sim.until(StepCommitted, 2)
            await sim.kill_trainer()
            await ranks.close()
            if tear:
                torn = max(Path(sim.events(CheckpointSaved)[-1].url).glob("*.distcp"))
                torn.write_bytes(torn.read_bytes()[:-2000])
            ranks = await ranks_of(model)
            sim.start_trainer(ranks)
        assert await sim.finish() is RunPhase.FINISHED
        await ranks.close()
    return sim


@pytest.mark.parametrize(("every", "tear"), [(None, False), (1, False), (1, True)])
async def test_another_trainer_comes_to_the_same_digests(tmp_path: Path, every: int | None, tear: bool) -> None:
    make_model(tmp_path / "model", vocab_size=128)
    expected = await run(tmp_path / "whole", tmp_path / "model")
    found = await run(tmp_path / "killed", tmp_path / "model", every=every, kill=True, tear=tear)
    said = [
        [(event.batch_digest, event.weights_digest, event.optimizer_digest) for event in sim.events(StepCommitted)]
        for sim in (expected, found)
    ]
    assert said[0] == said[1]
    assert len({weights for _, weights, _ in said[0]}) == STEPS
