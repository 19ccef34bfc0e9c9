"""Test the figures of a step: of several optimizer steps, of rollouts of several samples, of recorded ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from schemas.errors import TrainerError
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from tests.megatron.plain import every_log_prob, log_probs_of, to_engine
from tests.megatron.tiny import VOCAB, make_batch

Trainer = Callable[..., Any]


def batch_of(samples: Sequence[TrainSample]) -> TrainBatch:
    return TrainBatch(step=0, samples=tuple(samples))


def test_several_optimizer_steps_are_told_of_as_one(tiny: Path, trainer: Trainer) -> None:
    """The norm is the mean, and what fills no step is left out of every figure but its own."""
    samples = list(make_batch().samples[:5])
    samples[2:4] = (dataclasses.replace(sample, reward=3 * sample.reward) for sample in samples[2:4])
    norms = []
    for some in (samples[:2], samples[2:4]):
        with trainer(tiny, lr=0.0) as rank:
            norms.append(rank.train(batch_of(some)).metrics["grad_norm"])
    with trainer(tiny, lr=0.0, global_batch_size=2) as rank:
        metrics = rank.train(batch_of(samples)).metrics
    assert metrics["grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    assert norms[0] != pytest.approx(norms[1], rel=1e-2)
    assert (metrics["optimizer_steps"], metrics["samples"], metrics["samples_left_over"]) == (2, 4, 1)
    assert metrics["tokens"] == sum(sample.total_length for sample in samples[:4])
    assert metrics["trained_tokens"] == sum(int(sample.loss_mask.sum()) for sample in samples[:4])


def test_the_schedule_goes_one_step_with_each_optimizer_step(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, lr=1e-3, lr_warmup_iters=10, global_batch_size=4) as rank:
        rates = [rank.train(make_batch(step)).metrics["lr"] for step in range(2)]
    assert rates == pytest.approx([3e-4, 7e-4]), "of the fourth and the eighth of ten steps of warm-up"


def test_where_the_engine_s_log_probs_are_the_old_ones_its_distance_is_that_before_the_update(
    tiny: Path, trainer: Trainer
) -> None:
    batch = make_batch()
    with trainer(tiny, {"use_rollout_logprobs": True}, num_steps_per_rollout=2, lr=1e-2) as rank:
        metrics = rank.train(batch).metrics
    model = AutoModelForCausalLM.from_pretrained(tiny)
    first = torch.cat([to_engine(model, sample).abs() for sample in batch.samples[:8]])
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(first.mean().item(), abs=1e-5)


def test_samples_of_one_rollout_weigh_as_much_as_one(tiny: Path, trainer: Trainer) -> None:
    """In the loss, and in the means of what was passed."""
    samples = list(make_batch(groups=1, samples=4).samples)
    samples[1:3] = (dataclasses.replace(sample, rollout=samples[0].rollout) for sample in samples[1:3])
    with trainer(tiny, {"entropy_coef": 0.1}, lr=0.0) as rank:
        metrics = rank.train(batch_of(samples)).metrics
    model = AutoModelForCausalLM.from_pretrained(tiny)
    gain, entropy = 0.0, 0.0
    for members in (samples[:3], samples[3:]):
        trained = sum(int(sample.loss_mask.sum()) for sample in members)
        for sample in members:
            every = every_log_prob(model, sample, 1.0).detach()
            mask = torch.from_numpy(sample.loss_mask).float()
            gain += sample.reward * mask.sum().item() / trained
            entropy += (-(every.exp() * every).sum(-1) * mask).sum().item() / trained
    assert metrics["entropy"] == pytest.approx(entropy / 2, abs=1e-5)
    assert metrics["pg_loss"] == pytest.approx(-gain / 2, abs=1e-5)
    assert metrics["loss"] == pytest.approx(-(gain + 0.1 * entropy) / 2, abs=1e-5)
    assert (metrics["samples"], metrics["optimizer_steps"]) == (4, 1)


def test_recorded_rollouts_are_weighed_by_the_trainer_over_the_engine(tiny: Path, trainer: Trainer) -> None:
    samples = list(make_batch().samples)
    samples[:3] = (dataclasses.replace(sample, reused=True) for sample in samples[:3])
    model = AutoModelForCausalLM.from_pretrained(tiny)
    ratio = torch.cat([to_engine(model, sample).exp() for sample in samples[:3]])
    middle = ratio.median().item()
    with trainer(tiny, {"tis_clip": middle}, lr=0.0, skip_zero_advantage=False) as rank:
        metrics = rank.train(batch_of(samples)).metrics
    weight = ratio.clamp(max=middle)
    assert metrics["recalled_share"] == 3 / 16
    assert metrics["recalled_tis"] == pytest.approx(weight.mean().item(), abs=1e-5)
    assert metrics["recalled_tis_max"] == pytest.approx(weight.max().item(), abs=1e-5)
    assert metrics["recalled_tis_clipfrac"] == pytest.approx(0.5, abs=1.0 / len(ratio))


def test_a_sample_that_was_begun_under_older_weights_is_not_fresh(tiny: Path, trainer: Trainer) -> None:
    stale = [dataclasses.replace(sample, oldest_version=2, newest_version=3) for sample in make_batch(3).samples]
    with trainer(tiny) as rank:
        assert "logprob_agreement_max" not in rank.train(TrainBatch(step=3, samples=tuple(stale))).metrics


def test_filling_up_for_sequence_parallelism_changes_nothing(tiny: Path) -> None:
    from actors.megatron.forward import pack

    samples = make_batch(groups=1).samples
    plain, filled = (pack(samples, torch.device("cpu"), multiple_of=multiple) for multiple in (1, 64))
    total = sum(sample.total_length for sample in samples)
    assert filled.token_ids.shape[1] % 64 == 0
    assert filled.position_ids[0, :total].tolist() == plain.position_ids[0].tolist()
    assert filled.position_ids[0, total] == 0, "what fills up is a sequence of its own"
    assert filled.targets.tolist() == plain.targets.tolist()
    assert filled.packed.rows.tolist() == plain.packed.rows.tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"response_length": 0},
        {"response_length": 3, "loss_mask": np.ones(3, np.int8), "rollout_log_probs": np.zeros(3, np.float32)},
        {"rollout_log_probs": np.zeros(1, np.float32)},
        {"loss_mask": np.ones(1, np.int8)},
        {"reward": float("inf")},
    ],
)
def test_a_sample_that_does_not_fit_is_refused(change: dict[str, Any], tiny: Path, trainer: Trainer) -> None:
    """A good one of a prompt of 1 and a response of 2 tokens, and each way to spoil it."""
    good = dataclasses.replace(
        make_batch().samples[0],
        tokens=np.array([1, 2, VOCAB - 1], np.int32),
        response_length=2,
        loss_mask=np.ones(2, np.int8),
        rollout_log_probs=np.zeros(2, np.float32),
    )
    with trainer(tiny) as rank:
        rank.train(batch_of([good]))
        with pytest.raises(TrainerError, match="cannot be trained on"):
            rank.train(batch_of([dataclasses.replace(good, **change)]))


def test_log_probs_are_those_of_the_sample_s_own_tokens(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    batch = dataclasses.replace(make_batch(), temperature=0.7)
    with trainer(tiny, lr=0.0) as rank:
        rank.train(batch, f"{tmp_path}/0.pt")
    model = AutoModelForCausalLM.from_pretrained(tiny)
    for dumped, sample in zip(torch.load(tmp_path / "0.pt", weights_only=True)["samples"], batch.samples, strict=True):
        torch.testing.assert_close(dumped["log_probs"], log_probs_of(model, sample, 0.7).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_a_gradient_is_clipped_to_its_norm(clip: float, tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, optimizer="sgd", lr=1e-2, clip_grad=clip, weight_decay=0.0) as rank:
        before = {name: tensor.clone() for name, tensor in rank.export_weights()}
        norm = rank.train(make_batch()).metrics["grad_norm"]
        moved = torch.cat([(tensor - before[name]).flatten() for name, tensor in rank.export_weights()])
    assert norm > 1.0
    assert moved.norm().item() == pytest.approx(1e-2 * (clip or norm), rel=1e-2)
