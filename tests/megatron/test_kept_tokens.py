"""Test the tokens left by top-p and top-k: as bytes, and in the trainer's log-probs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from slime_events.core.tokens.kept_tokens import KeptTokens, pack_kept, unpack_kept
from slime_events.core.training.train_batch import TrainBatch
from tests.megatron.plain import chosen, every_log_prob
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]


@given(st.lists(st.sets(st.integers(0, 2**31 - 1), max_size=6), max_size=8))
def test_kept_ids_come_back_from_their_bytes(kept: list[set[int]]) -> None:
    counts = np.array([len(ids_) for ids_ in kept], np.int32)
    ids = np.array([token for ids_ in kept for token in sorted(ids_)], np.int32)
    back = unpack_kept(pack_kept(counts, ids), len(kept))
    assert [part.tolist() for part in back] == [counts.tolist(), ids.tolist()]


def test_small_steps_take_a_byte() -> None:
    assert len(pack_kept(np.array([3]), np.array([5, 7, 120]))) == 4
    assert pack_kept(np.zeros(2, np.int32), np.zeros(0, np.int32)).tolist() == [0, 0]


def narrowed(folder: Path, batch: TrainBatch, most: int) -> tuple[TrainBatch, list[torch.Tensor]]:
    """The batch as if an engine with these weights had drawn each token of the `most` likeliest and itself, in two
    chunks; and the log-probs of that engine.
    """
    model, samples, expected = AutoModelForCausalLM.from_pretrained(folder), [], []
    for sample in batch.samples:
        every = every_log_prob(model, sample, 1.0).detach()
        targets = torch.from_numpy(sample.tokens[-sample.response_length :]).long()
        stays = torch.zeros_like(every, dtype=torch.bool).scatter_(1, every.topk(most).indices, True)
        stays[torch.arange(len(targets)), targets] = True
        log_probs = chosen(every.masked_fill(~stays, -torch.inf).log_softmax(-1), sample)
        half = sample.response_length // 2
        parts = [
            KeptTokens(
                begin,
                pack_kept(stays[begin:end].sum(1).numpy(), stays[begin:end].nonzero()[:, 1].numpy()),
                log_probs[begin:end].numpy(),
            )
            for begin, end in ((0, half), (half, sample.response_length))
            if end > begin
        ]
        samples.append(dataclasses.replace(sample, kept=tuple(parts), rollout_log_probs=log_probs.numpy()))
        expected.append(log_probs)
    return dataclasses.replace(batch, samples=tuple(samples)), expected


@pytest.mark.parametrize("most", [1, 5])
def test_ratios_are_over_what_tokens_were_drawn_from(most: int, tiny: Path, trainer: Trainer) -> None:
    batch, _ = narrowed(tiny, make_batch(), most)
    with trainer(tiny, {"entropy_coef": 0.01}, num_steps_per_rollout=2, micro_batch_size=3) as rank:
        metrics = rank.train(batch).metrics
    assert metrics["train_rollout_logprob_abs_diff"] == pytest.approx(0.0, abs=1e-5)
    assert np.isfinite(metrics["grad_norm"])
    whole = dataclasses.replace(batch, samples=tuple(dataclasses.replace(sample, kept=()) for sample in batch.samples))
    with trainer(tiny) as rank:
        assert rank.train(whole).metrics["train_rollout_logprob_abs_diff"] > 0.3


def test_the_gradient_is_that_of_the_narrowed_distribution(tiny: Path, trainer: Trainer) -> None:
    batch, _ = narrowed(tiny, make_batch(), 5)
    # Every other sample was drawn of the whole vocabulary.
    mixed = tuple(sample if n % 2 else dataclasses.replace(sample, kept=()) for n, sample in enumerate(batch.samples))
    algorithm = {"loss_type": "sft_loss", "compute_advantages_and_returns": False}
    with trainer(tiny, algorithm, clip_grad=0.0, micro_batch_size=3) as rank:
        rank.train(dataclasses.replace(batch, samples=mixed))
        gradient = rank.trainee.model.module.embedding.word_embeddings.weight.main_grad.clone()
    model, total = AutoModelForCausalLM.from_pretrained(tiny), torch.zeros(())
    for sample in mixed:
        every = every_log_prob(model, sample, 1.0)
        for part in sample.kept:
            places, ids = map(torch.from_numpy, part.unpack())
            stays = torch.ones_like(every, dtype=torch.bool)
            stays[places] = False
            stays[places, ids] = True
            every = every.masked_fill(~stays, -torch.inf).log_softmax(-1)
        mask = torch.from_numpy(sample.loss_mask).float()
        total = total - (chosen(every, sample) * mask).sum() / mask.sum()
    (total / len(mixed)).backward()
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, atol=1e-6, rtol=1e-4)
