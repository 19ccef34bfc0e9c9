"""A step with another backend than Megatron: `actors/step` needs only a `Policy`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.step.commanded_step import CommandedSteps
from actors.step.rollout_step import RolloutStep
from actors.step.step_settings import StepSettings
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.datums import AdamParams, Datum, TrainPass
from slime_events.core.training.train_batch import TrainBatch
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.trainer_points import TrainerFunctions
from tests.megatron.tiny import make_batch
from tests.step.plain_policy import PlainPolicy

ROOT = Path(__file__).parents[2]


def settings(algorithm: dict[str, Any], **trainer: Any) -> StepSettings:
    own, chosen = TrainerSettings(hf_checkpoint="", **trainer), AlgorithmSettings(**algorithm)
    return StepSettings(own, chosen, TrainerFunctions(ArgsView.of(own, chosen), own, chosen))


def of_engines(policy: PlainPolicy, batch: TrainBatch) -> TrainBatch:
    """The batch with the policy's own log-probs, as engines with its weights would have sampled it."""
    scores = policy.score(batch.samples, range(len(batch.samples)), batch.temperature)
    samples = [replace(sample, rollout_log_probs=scores[i].numpy()) for i, sample in enumerate(batch.samples)]
    return replace(batch, samples=tuple(samples))


def test_no_file_of_the_step_imports_a_backend() -> None:
    names = [f"actors.step.{path.stem}" for path in (ROOT / "actors/step").glob("[a-z]*.py")]
    code = f"import sys, {', '.join(names)}; sys.exit(any(name.split('.')[0] == 'megatron' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("steps", [1, 2])
def test_the_policy_learns_what_was_rewarded(steps: int) -> None:
    policy = PlainPolicy()
    batch = of_engines(policy, make_batch())
    metrics = RolloutStep(policy, settings({}, num_steps_per_rollout=steps), batch).run()
    after = policy.score(batch.samples, range(len(batch.samples)), 1.0)
    gains = [
        sample.reward * float((after[index].numpy() - sample.rollout_log_probs)[sample.loss_mask != 0].sum())
        for index, sample in enumerate(batch.samples)
    ]
    assert sum(gains) > 0
    assert metrics["optimizer_steps"] == steps == policy.events.count("update")
    assert metrics["samples"] == len(batch.samples)
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(0.0, abs=1e-6)


def test_a_supervised_step_follows_the_gradient_of_the_mean_log_prob() -> None:
    """Compare with autograd over the whole batch at once."""
    batch, policy, other = make_batch(), PlainPolicy(), PlainPolicy()
    metrics = RolloutStep(policy, settings({"loss_type": "sft_loss"}), batch).run()
    masks = [torch.from_numpy(sample.loss_mask).bool() for sample in batch.samples]
    log_probs = other.forward(other.pack(batch.samples, range(len(masks))), 1.0).log_probs
    (-sum(own[mask].mean() for own, mask in zip(log_probs, masks, strict=True)) / len(masks)).backward()
    norm = other._step(other.learning_rate)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-5)
    for mine, theirs in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_a_clients_passes_give_the_gradients_of_its_step() -> None:
    policy, random = PlainPolicy(), np.random.default_rng(0)
    tokens = [random.integers(0, policy.vocab_size, size).astype(np.int32) for size in (3, 5, 4)]
    datums = [Datum(part, part, {"weights": np.ones(len(part), np.float32)}) for part in tokens]
    request, steps = TrainPass("first", "cross_entropy", {}, datums), CommandedSteps(policy)
    before = steps.run(request, backward=True).loss
    metrics = steps.step([request], AdamParams(learning_rate=0.1))
    assert policy.events.count("forward") == 2, "the pass is not repeated"
    assert (metrics["loss"], metrics["skipped"]) == (before, 0.0)
    assert steps.run(request, backward=False).loss < before
