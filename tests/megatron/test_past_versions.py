"""Weights that steps need beside their own: a reference that follows the policy, and old actors, to the bit."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from actors.offline.retrain_run import RetrainRequest, retrain
from actors.trainer.ranks import rendezvous_address
from actors.trainer.ray_ranks import RayRanks
from schemas.arrays import unpack
from schemas.errors import CheckpointMismatch
from schemas.rollouts import WeightSpan
from schemas.steps import StepCommitted
from schemas.trainers import Fidelity, TrainerRestored
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.run import RunPhase
from slime_events.core.training.train_batch import StoredVersion, TrainBatch
from slime_events.loop.training.past_versions import PastVersions
from storage.weights.store import Retention
from storage.weights.stored_version import digest_of
from tests.megatron.plain import log_probs_of
from tests.megatron.tiny import make_batch, make_model, settings_for
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

Trainer = Callable[..., Any]
STEPS = 6


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 20), st.integers(0, 40))
def test_nothing_is_needed_that_was_let_go(every: int, behind: int, first: int, steps: int) -> None:
    """Keep what `before` names, and need no older version later."""
    rule, kept = PastVersions(every, behind), frozenset[int]()
    for step in range(first, first + steps):
        reference = rule.reference(step, first)
        needed = rule.before(step, first)
        assert needed <= kept
        assert all(first <= version < step for version in needed)
        if every and step:
            assert reference is not None or step < every
            assert reference is None or (reference <= step and step - reference < every)
        assert reference is None or reference in needed | {step}
        kept = needed | {step}


def other_weights(rank: Any, folder: Path) -> StoredVersion:
    rank.load_weights(folder)
    return StoredVersion(1, str(folder), digest_of(rank.export_bytes()))


def made_by(batch: TrainBatch, step: int) -> TrainBatch:
    """The first half of each response by version 1, the rest by the step's own; one whole sample by either."""
    samples = []
    for place, sample in enumerate(batch.samples):
        half = {0: 0, 1: sample.response_length}.get(place, sample.response_length // 2)
        spans = [WeightSpan(0, half, 1), WeightSpan(half, sample.response_length, step)]
        spans = [span for span in spans if span.end > span.start]
        samples.append(dataclasses.replace(sample, spans=tuple(spans), oldest_version=spans[0].version))
    return dataclasses.replace(batch, samples=tuple(samples))


@pytest.mark.parametrize(("per_step", "kl_coef"), [(1, 0.0), (2, 0.0), (1, 0.1)])
def test_each_token_s_old_log_prob_is_that_of_the_weights_that_made_it(
    per_step: int, kl_coef: float, tiny: Path, tmp_path: Path, trainer: Trainer
) -> None:
    make_model(tmp_path / "old", seed=7)
    batch = dataclasses.replace(made_by(make_batch(2), 2), temperature=0.7)
    algorithm = {"keep_old_actor": True, "kl_coef": kl_coef}
    with trainer(tiny, algorithm, num_steps_per_rollout=per_step, lr=0.0) as rank:
        stored = other_weights(rank, tmp_path / "old")
        rank.load_weights(tiny)
        result = rank.train(dataclasses.replace(batch, old=(stored,)), f"{tmp_path}/2.pt")
        assert result.models["old_actor v1"] == stored.digest
        wrong = dataclasses.replace(batch, old=(StoredVersion(3, str(tiny), stored.digest),))
        with pytest.raises(CheckpointMismatch, match="version 3"):
            rank.train(wrong)
    now, old = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64) for folder in (tiny, tmp_path / "old")
    )
    for sample, dumped in zip(batch.samples, torch.load(f"{tmp_path}/2.pt", weights_only=True)["samples"], strict=True):
        expected = log_probs_of(now, sample, 0.7).detach()
        before = log_probs_of(old, sample, 0.7).detach()
        for span in sample.spans:
            if span.version == 1:
                expected[span.start : span.end] = before[span.start : span.end]
        torch.testing.assert_close(dumped["log_probs"].double(), expected, atol=1e-5, rtol=1e-5)
    assert abs(result.metrics["ppo_kl"]) > 1e-3  # the policy is another one than made the tokens


def test_the_reference_becomes_a_version(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path / "later", seed=7)
    batch = make_batch(4)
    with trainer(tiny, {"use_kl_loss": True, "ref_update_interval": 4}, lr=0.0) as rank:
        begun = digest_of(rank.export_bytes())
        assert rank.train(make_batch(3)).models == {"reference": begun}
        stored = other_weights(rank, tmp_path / "later")
        rank.load_weights(tiny)
        result = rank.train(dataclasses.replace(batch, reference=stored), f"{tmp_path}/4.pt")
        assert result.models == {"reference": stored.digest}
    later = AutoModelForCausalLM.from_pretrained(tmp_path / "later", dtype=torch.float64)
    for sample, dumped in zip(batch.samples, torch.load(f"{tmp_path}/4.pt", weights_only=True)["samples"], strict=True):
        torch.testing.assert_close(
            dumped["ref_log_probs"].double(), log_probs_of(later, sample, 1.0).detach(), atol=1e-5, rtol=1e-5
        )


SETTINGS = TrainSettings(
    algorithm=AlgorithmSettings(keep_old_actor=True, use_kl_loss=True, kl_loss_coef=0.1, ref_update_interval=2),
    rollout=RolloutSettings(max_staleness=1),
)


async def ranks_of(settings: TrainSettings) -> RayRanks:
    ranks = RayRanks([])
    await ranks.start(settings, rendezvous_address())
    return ranks


@pytest.mark.parametrize(("every", "kill_at"), [(None, 5), (3, 4), (3, 5)])
async def test_a_killed_trainer_and_a_retraining_need_the_same(tmp_path: Path, every: int | None, kill_at: int) -> None:
    """Delete unneeded weights at once, and still find all that is needed to continue."""
    make_model(tmp_path / "model", vocab_size=128)
    (tmp_path / "run").mkdir()
    settings = replace(SETTINGS, trainer=settings_for(tmp_path / "model", keep_weights=1))
    training = {"past": PastVersions.of(settings), "retention": Retention(1)}
    ranks = await ranks_of(settings)
    plan = make_plan(steps=STEPS, max_staleness=1, checkpoint_every=every)
    async with Simulation(tmp_path / "run", plan, ranks=ranks, training=training) as sim:
        sim.start_engine(Script(chunk=4, vocabulary=128, seconds_per_chunk=0.01))
        await sim.until(StepCommitted, kill_at)
        await sim.kill_trainer()
        await ranks.close()
        ranks = await ranks_of(settings)
        sim.start_trainer(ranks)
        assert await sim.finish() is RunPhase.FINISHED
        await ranks.close()
    committed = sim.events(StepCommitted)
    (restored,) = sim.events(TrainerRestored)
    assert (restored.optimizer, restored.checkpoint) == (Fidelity.EXACT, every or 0)
    digests = {event.version: event.weights_digest for event in committed}
    for event in committed[2:]:
        assert event.models["reference"] == digests[event.step - event.step % 2]
    old = {name: digest for event in committed for name, digest in event.models.items() if name.startswith("old_actor")}
    assert len(old) > 1, "no sample was older than its step"
    assert all(digest == digests.get(int(name.rpartition("v")[2]), digest) for name, digest in old.items())
    auditor = Audit("sim", rules=Rules(algorithm=settings.algorithm), files=False)
    for record in sim.log.records:
        auditor.apply(record)
    assert auditor.finish().findings == []
    shutil.rmtree(tmp_path / "run" / "weights")

    opened = OpenedRun(sim.log, settings, unpack, None, "sim")
    for request in (RetrainRequest(), RetrainRequest(from_base=True)):
        report = await retrain(opened, request, make_ranks=_Ranks)
        assert [step.differences for step in report.steps] == [()] * len(report.steps)
        assert report.steps[-1].step == STEPS - 1


class _Ranks:
    """`make_ranks` in this process."""

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings

    async def __aenter__(self) -> RayRanks:
        self._ranks = await ranks_of(self._settings)
        return self._ranks

    async def __aexit__(self, *_: object) -> None:
        await self._ranks.close()
