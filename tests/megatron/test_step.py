"""Compare what one rollout step computes with plain torch: log-probs, advantages, loss, gradient, figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from schemas.errors import TrainerError
from slime_events.algorithms.advantages import compute_advantages
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.training.train_batch import TrainBatch, TrainSample
from tests.megatron.plain import chosen, every_log_prob, log_probs_of, to_engine
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkpoint of the same shape."""
    folder = tmp_path_factory.mktemp("other")
    make_model(folder, seed=1)
    return folder


@pytest.mark.parametrize(
    ("per_token", "entropy_coef", "credited"), [(False, 0.0, True), (True, 0.3, False), (False, 0.3, False)]
)
def test_gradient_and_loss_equal_a_plain_torch_step(
    per_token: bool, entropy_coef: float, credited: bool, tiny: Path, trainer: Trainer
) -> None:
    """credited: half of the samples have advantages that are discounted by turns."""
    batch = dataclasses.replace(make_batch(), temperature=0.7)
    if credited:
        samples = list(batch.samples)
        samples[::2] = [_discounted(sample) for sample in samples[::2]]
        batch = dataclasses.replace(batch, samples=tuple(samples))
    algorithm = {"calculate_per_token_loss": per_token, "entropy_coef": entropy_coef}
    with trainer(tiny, algorithm, clip_grad=0.0, micro_batch_size=3) as rank:
        result = rank.train(batch)
        gradient = rank.trainee.model.module.embedding.word_embeddings.weight.main_grad.clone()
    model = AutoModelForCausalLM.from_pretrained(tiny)
    total, trained, entropies = torch.zeros(()), 0, 0.0
    differences = []
    for sample in batch.samples:
        every = every_log_prob(model, sample, batch.temperature)
        log_probs, entropy = chosen(every, sample), -(every.exp() * every).sum(-1)
        mask = torch.from_numpy(sample.loss_mask).float()
        ratio = (log_probs - log_probs.detach()).exp()
        credit = 1.0 if sample.credit is None else torch.from_numpy(sample.credit)
        gain = ratio * sample.reward * credit + entropy_coef * entropy
        divisor = 1 if per_token else mask.sum()
        total = total - (gain * mask).sum() / divisor
        entropies += ((entropy * mask).sum() / divisor).item()
        trained += int(mask.sum())
        differences.append(to_engine(model, sample, batch.temperature).abs())
    weight = trained if per_token else len(batch.samples)
    loss = total / weight
    loss.backward()
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, atol=1e-6, rtol=1e-4)
    assert result.metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert result.metrics["trained_tokens"] == trained
    if entropy_coef:
        assert result.metrics["entropy"] == pytest.approx(entropies / weight, abs=1e-5)
    difference = torch.cat(differences)
    assert result.metrics["train_rollout_logprob_abs_diff"] == pytest.approx(difference.mean().item(), abs=1e-5)
    assert result.metrics["train_rollout_logprob_abs_diff_max"] == pytest.approx(difference.max().item(), abs=1e-5)
    assert result.metrics["logprob_agreement_max"] == result.metrics["train_rollout_logprob_abs_diff_max"]


def _discounted(sample: TrainSample) -> TrainSample:
    """Its first half is an earlier turn."""
    credit = np.ones(sample.response_length, np.float32)
    credit[: sample.response_length // 2] = 0.5
    return dataclasses.replace(sample, credit=credit)


def test_agreement_is_measured_on_equal_weights_only(tiny: Path, trainer: Trainer) -> None:
    """Measure for one fresh sample among stale ones the agreement of that sample alone."""
    batch = make_batch(step=3)
    stale = [dataclasses.replace(sample, oldest_version=2) for sample in batch.samples]
    with trainer(tiny) as rank:
        assert "logprob_agreement_max" not in rank.train(TrainBatch(step=3, samples=tuple(stale))).metrics
    model = AutoModelForCausalLM.from_pretrained(tiny)
    largest = [to_engine(model, sample).abs().max().item() for sample in batch.samples]
    nearest = largest.index(min(largest))
    mixed = [*stale[:nearest], batch.samples[nearest], *stale[nearest + 1 :]]
    with trainer(tiny) as rank:
        metrics = rank.train(TrainBatch(step=3, samples=tuple(mixed))).metrics
    assert metrics["logprob_agreement_max"] == pytest.approx(largest[nearest], abs=1e-5)
    assert metrics["train_rollout_logprob_abs_diff_max"] == pytest.approx(max(largest), abs=1e-5)
    assert min(largest) < max(largest)


def test_several_optimizer_steps_take_the_log_probs_before_the_first(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, num_steps_per_rollout=2, lr=1e-2) as rank:
        metrics = rank.train(make_batch()).metrics
    assert metrics["optimizer_steps"] == 2
    assert abs(metrics["ppo_kl"]) > 1e-4  # the second step's ratio is not 1
    with trainer(tiny, global_batch_size=16, lr=1e-2) as rank:
        assert rank.train(make_batch()).metrics["ppo_kl"] == 0.0


def test_the_mismatch_is_that_of_the_policy_before_the_first_update(tiny: Path, trainer: Trainer) -> None:
    """Also where the engine's log-probs are the old policy's: then the loss needs none of the trainer's."""
    algorithm = {"use_rollout_logprobs": True, "get_mismatch_metrics": True}
    metrics = []
    for rate in (0.0, 1e-2):
        with trainer(tiny, algorithm, num_steps_per_rollout=2, lr=rate) as rank:
            metrics.append(rank.train(make_batch()).metrics)
    for name in ("mis_kl", "mis_k3_kl", "mis_training_log_ppl", "train_rollout_logprob_abs_diff"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-5)
    assert metrics[0]["ois"] != pytest.approx(metrics[1]["ois"], abs=1e-5)


def test_old_log_probs_are_taken_at_the_rollout_s_temperature(tiny: Path, trainer: Trainer) -> None:
    """Weights that do not move are no other policy in the second step than in the first, and as far from the engine."""
    batch = dataclasses.replace(make_batch(), temperature=0.7)
    with trainer(tiny, num_steps_per_rollout=2, lr=0.0) as rank:
        metrics = rank.train(batch).metrics
    assert metrics["optimizer_steps"] == 2
    assert metrics["ppo_kl"] == pytest.approx(0.0, abs=1e-6)
    with trainer(tiny, lr=0.0) as rank:
        at_once = rank.train(batch).metrics
    for name in ("train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff_max", "logprob_agreement_max"):
        assert metrics[name] == pytest.approx(at_once[name], abs=1e-5)


@pytest.mark.parametrize("use_rollout_logprobs", [False, True])
def test_a_kl_in_the_reward_is_that_to_the_reference_at_the_rollout_s_temperature(
    use_rollout_logprobs: bool, tiny: Path, other: Path, tmp_path: Path, trainer: Trainer
) -> None:
    algorithm = {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.1, "normalize_advantages": True}
    algorithm |= {"use_rollout_logprobs": use_rollout_logprobs}
    batch, path = dataclasses.replace(make_batch(), temperature=0.7), f"{tmp_path}/0.pt"
    with trainer(tiny, algorithm, ref_load=str(other), clip_grad=0.0) as rank:
        metrics = rank.train(batch, path).metrics
    policy, reference = (AutoModelForCausalLM.from_pretrained(folder) for folder in (tiny, other))
    own = [log_probs_of(policy, sample, 0.7).detach() for sample in batch.samples]
    engine = [torch.from_numpy(sample.rollout_log_probs) for sample in batch.samples]
    expected, _ = compute_advantages(
        torch.tensor([sample.reward for sample in batch.samples]),
        engine if use_rollout_logprobs else own,
        [log_probs_of(reference, sample, 0.7).detach() for sample in batch.samples],
        [torch.from_numpy(sample.loss_mask) for sample in batch.samples],
        AlgorithmSettings(**algorithm),
    )
    for dumped, advantages in zip(torch.load(path, weights_only=True)["samples"], expected, strict=True):
        torch.testing.assert_close(dumped["advantages"], advantages, atol=1e-4, rtol=1e-4)
    assert metrics["grad_norm"] > 0


def test_a_gradient_that_is_not_finite_ends_the_step(tiny: Path, trainer: Trainer) -> None:
    batch = make_batch()
    huge = tuple(dataclasses.replace(sample, reward=sample.reward * 1e38) for sample in batch.samples)
    with trainer(tiny) as rank, pytest.raises(TrainerError, match="gradient norm"):
        rank.train(TrainBatch(step=0, samples=huge))


@pytest.mark.parametrize("silent", [False, True])
def test_the_gradient_is_added_up_over_data_parallel_ranks(
    silent: bool, tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that adds 1 to what it is sent; also where this rank has no sample that moves the weights."""
    reduce, batch = torch.distributed.all_reduce, make_batch()
    if silent:
        batch = TrainBatch(step=0, samples=tuple(dataclasses.replace(sample, reward=0.0) for sample in batch.samples))
    gradients = []
    for peer in (False, True):
        with trainer(tiny, clip_grad=0.0, micro_batch_size=5) as rank:
            buckets = {
                bucket.grad_data.data_ptr() for buffer in rank.trainee.model.buffers for bucket in buffer.buckets
            }

            def all_reduce(tensor: Tensor, *args: Any, buckets: set[int] = buckets, **kwargs: Any) -> Any:
                if tensor.data_ptr() in buckets:
                    tensor += 1.0
                return reduce(tensor, *args, **kwargs)

            with monkeypatch.context() as patched:
                if peer:
                    patched.setattr(torch.distributed, "all_reduce", all_reduce)
                rank.train(batch)
            gradients.append(torch.cat([p.main_grad.flatten() for p in rank.trainee.model.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0] + 1.0)
