"""Megatron behind the trainer's shell: one that takes over comes to the same digests, or says that it does not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from actors.megatron.rank import TrainerRank
from actors.trainer.ranks import rendezvous_address
from actors.trainer.ray_ranks import RayRanks
from schemas.checkpoints import CheckpointSaved
from schemas.steps import StepCommitted
from schemas.trainers import Fidelity, TrainerRestored
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.steps import APPROXIMATE
from slime_events.core.state.run import RunPhase
from slime_events.core.training.train_batch import StepResult, TrainBatch
from tests import made
from tests.megatron.tiny import make_model, settings_for
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

STEPS = 3


class NoisyRank(TrainerRank):
    """Adds noise whenever it trains a step again: to weights, and to one moment of each parameter. trained: by all of
    these ranks."""

    trained: ClassVar[list[int]] = []

    def train(self, batch: TrainBatch, dump: str | None = None) -> StepResult:
        result = super().train(batch, dump)
        times = self.trained.count(batch.step)
        self.trained.append(batch.step)
        if times:
            random = torch.Generator().manual_seed(times)
            inner = self.trainee.optimizer.chained_optimizers[0].optimizer
            with torch.no_grad():
                for parameter in (parameter for group in inner.param_groups for parameter in group["params"]):
                    noise = 1e-6 * torch.randn(parameter.shape, generator=random)
                    parameter.add_(noise)
                    inner.state[parameter]["exp_avg"].add_(noise)
        return dataclasses.replace(result, optimizer_digest=self.optimizer_digest())


SCHEDULE = {"lr_warmup_iters": 1, "lr_decay_style": "cosine", "lr_decay_iters": 10}


async def ranks_of(model: Path) -> RayRanks:
    ranks = RayRanks([])
    await ranks.start(made.settings(trainer=settings_for(model, **SCHEDULE)), rendezvous_address())
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
    killed_run = await run(tmp_path / "killed", tmp_path / "model", every=every, kill=True, tear=tear)
    (restored,) = killed_run.events(TrainerRestored)
    assert restored.optimizer is Fidelity.EXACT
    digests = [
        [(event.batch_digest, event.weights_digest, event.optimizer_digest) for event in sim.events(StepCommitted)]
        for sim in (expected, killed_run)
    ]
    assert digests[0] == digests[1]
    assert len({weights for _, weights, _ in digests[0]}) == STEPS


@pytest.mark.parametrize("every", [None, 1])
async def test_noise_of_training_again_stays_out_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None
) -> None:
    """Killed after two steps of which a checkpoint has one, none, or both."""
    monkeypatch.setattr("actors.trainer.ray_ranks.rank_class", lambda: NoisyRank)
    monkeypatch.setattr(NoisyRank, "trained", [])
    make_model(tmp_path / "model", vocab_size=128)
    sim = await run(tmp_path / "run", tmp_path / "model", every=every, kill=True, tear=every is not None)
    (restored,) = sim.events(TrainerRestored)
    assert restored.optimizer is Fidelity.APPROXIMATE
    assert restored.differing == restored.retrained == NoisyRank.trained.count(1) - 1 + NoisyRank.trained.count(0) - 1
    assert restored.distance is not None
    assert 0 < restored.distance.max_abs < 1e-3, "the learning rate: what one step moves a weight by at most"
    auditor = Audit("sim")
    for record in sim.log.records:
        auditor.apply(record)
    report = auditor.finish()
    assert report.clean, report.findings
    (steps,) = (check for check in report.checks if check.name == "steps")
    assert steps.counts[APPROXIMATE] == STEPS - restored.version
