"""A critic beside the policy: values, gradient, schedule, beginnings, checkpoints, steps that train it alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from actors.megatron.critic import ValueHead
from actors.megatron.rank import TrainerRank
from schemas.errors import CheckpointMismatch
from slime_events.algorithms.advantages import compute_advantages
from slime_events.algorithms.value_model import clipped_value_loss
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.training.train_batch import StepResult, TrainBatch, TrainSample
from tests.megatron.plain import log_probs_of
from tests.megatron.test_rank import weights
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]
PPO = {"advantage_estimator": "ppo", "gamma": 0.99, "lambd": 0.9}
SCHEDULE = {"critic_lr": 3e-3, "critic_lr_warmup_iters": 1, "lr_decay_style": "cosine", "lr_decay_iters": 20}


def graded(step: int = 0) -> TrainBatch:
    """Rewards as graded, as they are sealed for PPO."""
    batch = make_batch(step)
    return dataclasses.replace(
        batch, samples=tuple(dataclasses.replace(sample, reward=sample.raw_reward) for sample in batch.samples)
    )


def head_of(rank: TrainerRank) -> ValueHead:
    critic = rank.trainee.critic
    assert critic is not None
    return next(module for module in critic.model.modules() if isinstance(module, ValueHead))


def values_of(model: Any, weight: Tensor, bias: Tensor, sample: TrainSample) -> Tensor:
    """[response], with gradient: of the hidden state that each token is predicted from."""
    tokens = torch.from_numpy(sample.tokens).long()
    hidden = model.model(tokens[None]).last_hidden_state[0, -sample.response_length - 1 : -1]
    return (hidden @ weight.T + bias)[:, 0]


@pytest.mark.parametrize("more", [{}, {"kl_coef": 0.1, "normalize_advantages": True, "calculate_per_token_loss": True}])
def test_a_step_equals_plain_torch(more: dict[str, Any], tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    algorithm, batch, path = PPO | more, dataclasses.replace(graded(), temperature=0.7), f"{tmp_path}/0.pt"
    make_model(tmp_path / "reference", seed=1)
    with trainer(tiny, algorithm, clip_grad=0.0, micro_batch_size=3, ref_load=str(tmp_path / "reference")) as rank:
        head = head_of(rank)
        weight, bias = head.weight.detach().clone().requires_grad_(), head.bias.detach().clone().requires_grad_()
        metrics = rank.train(batch, path).metrics
        critic = rank.trainee.critic
        table = critic.model.module.embedding.word_embeddings.weight
        gradients = [parameter.main_grad.clone() for parameter in (head.weight, head.bias, table)]
    model = AutoModelForCausalLM.from_pretrained(tiny)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "reference")
    values = [values_of(model, weight, bias, sample) for sample in batch.samples]
    settings, masks = AlgorithmSettings(**algorithm), [torch.from_numpy(sample.loss_mask) for sample in batch.samples]
    advantages, returns = compute_advantages(
        torch.tensor([sample.reward for sample in batch.samples]),
        [log_probs_of(model, sample, 0.7).detach() for sample in batch.samples],
        [log_probs_of(reference, sample, 0.7).detach() for sample in batch.samples],
        masks,
        settings,
        values=[value.detach() for value in values],
    )
    total, trained = torch.zeros(()), sum(int(mask.sum()) for mask in masks)
    for value, target, mask in zip(values, returns, masks, strict=True):
        losses, _ = clipped_value_loss(value, value.detach(), target, settings.value_clip)
        total = total + (losses * mask).sum() / (1 if settings.calculate_per_token_loss else mask.sum())
    loss = total / (trained if settings.calculate_per_token_loss else len(batch.samples))
    loss.backward()
    expected = [weight.grad, bias.grad, model.get_input_embeddings().weight.grad]
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert metrics["value_loss"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["value_clipfrac"] == 0.0, "one update sees the values that it is clipped around"
    dumped = torch.load(path, weights_only=True)["samples"]
    for dump, *parts in zip(dumped, advantages, values, returns, strict=True):
        for name, part in zip(("advantages", "values", "returns"), parts, strict=True):
            torch.testing.assert_close(dump[name], part.detach(), atol=1e-4, rtol=1e-4)


def test_several_optimizer_steps_clip_around_the_values_before_the_first(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, PPO | {"value_clip": 1e-4}, num_steps_per_rollout=2, critic_lr=1e-2) as rank:
        metrics = rank.train(graded()).metrics
    assert metrics["value_clipfrac"] == pytest.approx(0.5, abs=0.05), "of the second step alone"
    assert metrics["critic_lr"] == 1e-2


def test_the_critic_learns_what_rewards_are_to_be_expected(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, PPO, lr=0.0, critic_lr=3e-3) as rank:
        metrics = [rank.train(graded()).metrics for _ in range(12)]
    assert metrics[-1]["value_loss"] < 0.3 * metrics[0]["value_loss"]
    assert metrics[-1]["explained_variance"] > 0.5 > metrics[0]["explained_variance"]


def test_its_settings_default_to_the_policys(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, PPO, lr=2e-4) as rank:
        first = rank.train(graded()).metrics
    assert (first["lr"], first["critic_lr"]) == (2e-4, 2e-4)
    with trainer(tiny, PPO, lr=2e-4, critic_lr=1e-3, critic_lr_warmup_iters=2) as rank:
        rates = [rank.train(graded(step)).metrics for step in range(3)]
    assert [rate["critic_lr"] for rate in rates] == pytest.approx([0.0, 5e-4, 1e-3])
    assert {rate["lr"] for rate in rates} == {2e-4}


def state(result: StepResult) -> tuple[str, str]:
    return result.optimizer_digest, result.critic_digest


@pytest.mark.parametrize("kind", [{}, {"bf16": True}], ids=["adam", "bf16"])
def test_a_checkpoint_holds_the_critic_bit_for_bit(
    kind: dict[str, Any], tiny: Path, tmp_path: Path, trainer: Trainer
) -> None:
    folder, settings = tmp_path / "checkpoint", SCHEDULE | kind
    with trainer(tiny, PPO, **settings) as rank:
        before = rank.critic_digest()
        rank.train(graded(0))
        rank.save_checkpoint(folder)
        through = [state(rank.train(graded(step))) for step in (1, 2)]
        last = weights(rank)
        rank.reset()
        assert rank.critic_digest() == before, "the head is drawn by the seed"
    with trainer(tiny, PPO, load=str(folder), **settings) as rank:
        assert [state(rank.train(graded(step))) for step in (1, 2)] == through
        assert weights(rank) == last
    assert len({critic for _, critic in through} | {before}) == 3


def test_a_digest_follows_weights_and_moments(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, PPO) as rank:
        rank.train(graded())
        first, optimizer = rank.critic_digest(), rank.optimizer_digest()
        with torch.no_grad():
            head_of(rank).bias.add_(1.0)
        second = rank.critic_digest()
        inner = rank.trainee.critic.optimizer.chained_optimizers[0].optimizer
        next(iter(inner.state.values()))["exp_avg"].add_(1.0)
        assert len({first, second, rank.critic_digest()}) == 3
        assert rank.optimizer_digest() == optimizer
    with trainer(tiny) as rank:
        assert (rank.critic_digest(), rank.train(make_batch()).critic_digest) == ("", "")


def test_the_first_steps_may_train_the_critic_alone(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, PPO | {"num_critic_only_steps": 2}) as rank:
        before = weights(rank), rank.optimizer_digest()
        alone = [rank.train(graded(step)) for step in range(2)]
        assert (weights(rank), rank.optimizer_digest()) == before
        assert len({result.critic_digest for result in alone}) == 2
        for name in ("pg_loss", "grad_norm", "lr"):
            assert name not in alone[0].metrics, "nothing was done that it could be a figure of"
        assert alone[0].metrics["value_loss"] > 0
        both = rank.train(graded(2))
        assert weights(rank) != before[0]
        assert both.metrics["grad_norm"] > 0


def test_a_value_head_of_a_checkpoint_is_taken(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path, seed=2)
    tensors = load_file(tmp_path / "model.safetensors")
    score = torch.full((1, 32), 0.25)
    save_file({**tensors, "score.weight": score}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with trainer(tiny, PPO, critic_load=str(tmp_path)) as rank:
        assert torch.equal(head_of(rank).weight, score)
        assert not head_of(rank).bias.any()
        table = rank.trainee.critic.model.module.embedding.word_embeddings.weight
        assert torch.equal(table, tensors["model.embed_tokens.weight"])
        assert not torch.equal(rank.trainee.model.module.embedding.word_embeddings.weight, table)


def test_an_untied_model_has_a_critic_too(tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path, "llama", tied=False)
    with trainer(tmp_path, PPO) as rank:
        assert rank.train(graded()).metrics["value_loss"] > 0


def test_the_critic_of_another_run_is_taken_with_its_optimizer(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    folder, plain = tmp_path / "critic", tmp_path / "plain"
    with trainer(tiny, PPO) as rank:
        rank.train(graded())
        rank.save_checkpoint(folder)
        trained, start = rank.critic_digest(), weights(rank)
    with trainer(tiny) as rank:
        rank.save_checkpoint(plain)
    with trainer(tiny, PPO, critic_load=str(folder)) as rank:
        assert rank.critic_digest() == trained
        assert weights(rank) != start
    with trainer(tiny, PPO, load=str(plain)) as rank:
        new = rank.critic_digest()
        assert new != trained, "a checkpoint without a critic leaves a new one"
    with trainer(tiny, PPO, load=str(folder), critic_load=str(tiny)) as rank:
        assert (weights(rank), rank.critic_digest()) == (start, new), "what is asked for wins"
    with pytest.raises(CheckpointMismatch, match="holds no critic"), trainer(tiny, PPO, critic_load=str(plain)):
        pass
