"""The pure parts: grids, micro batches, shares, digests, log-probs from logits."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from actors.megatron.attention import GRID_SHARE, alike, lay_out
from actors.megatron.families.registry import architecture_of
from actors.megatron.weights import digest_tensors
from actors.step.data_split import checked_batch, default_tokens, packing_rule, rollout_denominators
from actors.step.log_probs import log_probs_and_entropy
from actors.step.step_metrics import AGREEMENT, DIFFERENCE, OffPolicyMetrics, StepMetrics
from schemas.errors import TrainerError
from slime_events.algorithms.objective import truncated
from slime_events.algorithms.packing import PackingRule, first_fit, micro_batches, optimizer_steps
from slime_events.core.config.trainer import TrainerSettings
from storage.digests import weights_digest
from tests.megatron.tiny import make_batch

SMALL = architecture_of(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "vocab_size": 264,
    }
)
LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=40)


@given(LENGTHS)
def test_grids_hold_every_token_once_and_little_padding(lengths: list[int]) -> None:
    sizes = np.array(lengths)
    grids, to_grid, from_grid = lay_out(alike(sizes), np.cumsum(sizes) - sizes, sizes)
    assert sum(rows for rows, _ in grids) == len(lengths)
    assert len(to_grid) == sum(rows * columns for rows, columns in grids) <= sum(lengths) / GRID_SHARE
    assert (to_grid[from_grid] == np.arange(sum(lengths))).all()
    assert len(set(from_grid.tolist())) == sum(lengths)


def test_what_just_fits_is_taken() -> None:
    assert first_fit([5, 6, 5, 4], 10) == [[0, 2], [1, 3]]


def test_micro_batches_follow_the_settings() -> None:
    lengths = [10] * 6

    def packed(*, cpu: bool = True, **settings: Any) -> list[list[int]]:
        return micro_batches(lengths, packing_rule(TrainerSettings(**settings), SMALL, 1, cpu=cpu))[0]

    assert packed() == [[0, 1, 2, 3, 4, 5]]
    assert packed(cpu=False) == [[index] for index in range(6)]
    assert packed(micro_batch_size=4) == [[0, 1, 2, 3], [4, 5]]
    assert packed(use_dynamic_batch_size=True, max_tokens_per_gpu=25) == [[0, 1], [2, 3], [4, 5]]


def test_the_default_limit_falls_with_the_size_of_the_model() -> None:
    large = dataclasses.replace(SMALL, num_layers=30, hidden_size=576, ffn_hidden_size=1536, vocab_size=49152)
    assert default_tokens(SMALL) == 16384
    assert default_tokens(large) == 512


@given(LENGTHS, st.integers(1, 8))
def test_balanced_ranks_differ_by_at_most_one_sample(lengths: list[int], ranks: int) -> None:
    dealt = micro_batches(lengths, PackingRule(ranks=ranks, balance=True))
    load = [sum(lengths[index] for members in batches for index in members) for batches in dealt]
    assert max(load) - min(load) <= max(lengths)


@pytest.mark.parametrize(("balance", "ranks"), [(True, [[[1], [2]], [[0], [3]]]), (False, [[[0], [2]], [[1], [3]]])])
def test_the_longest_go_with_the_shortest(balance: bool, ranks: list[list[list[int]]]) -> None:
    assert micro_batches([5, 3, 3, 1], PackingRule(ranks=2, balance=balance)) == ranks


def test_optimizer_steps_count_rollouts_and_keep_siblings_together() -> None:
    samples = list(make_batch(groups=2, samples=4).samples)
    samples[5] = dataclasses.replace(samples[5], rollout=samples[1].rollout)  # 7 rollouts, one of two samples
    rollouts = [sample.rollout for sample in samples]
    steps = optimizer_steps(rollouts, 3)
    assert [step.indices for step in steps] == [(0, 1, 2, 5), (3, 4, 6)]
    assert [step.rollouts for step in steps] == [3, 3]  # the seventh fills no step
    denominators = rollout_denominators(samples)
    assert denominators is not None
    assert denominators[1] == denominators[5] == samples[1].loss_mask.sum() + samples[5].loss_mask.sum()
    with pytest.raises(TrainerError, match="7 rollouts"):
        optimizer_steps(rollouts, 8)


def test_steps_of_a_batch_that_does_not_divide_are_as_many_as_were_asked_for() -> None:
    steps = optimizer_steps(range(5), None, 3)
    assert [step.indices for step in steps] == [(0,), (1,), (2,)]
    assert [step.rollouts for step in steps] == [1, 1, 1]


def test_agreement_is_the_maximum_over_fresh_tokens_that_are_trained() -> None:
    """[trained and fresh, masked and fresh, trained and stale]"""
    metrics, alone = StepMetrics(), _as_group(_Alone())
    trainer = torch.tensor([-1.0, -9.0, -3.0])
    mask, same = torch.tensor([1, 0, 1]), torch.tensor([True, True, False])
    metrics.add_difference(trainer, torch.tensor([-1.25, 0.0, -1.0]), mask, same)
    means = metrics.means(1.0, alone)
    assert means[AGREEMENT] == 0.25
    assert means[f"{DIFFERENCE}_max"] == 2.0
    assert means[DIFFERENCE] == pytest.approx(2.25 / 2)
    metrics.add_difference(trainer, torch.tensor([-1.5, 0.0, -3.0]), mask, ~same)
    metrics.add_difference(trainer, torch.tensor([-1.125, 0.0, -3.0]), mask, same)
    means = metrics.means(1.0, alone)
    assert (means[AGREEMENT], means[f"{DIFFERENCE}_max"]) == (0.25, 2.0)


class _Alone:
    """A process group of one, as far as anybody here looks."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def _as_group(group: _Alone) -> dist.ProcessGroup:
    return group  # type: ignore[return-value]


class _OfTwo(_Alone):
    def size(self) -> int:
        return 2


def test_figures_of_all_ranks_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums over ranks by what they are means over; the largest difference and the slowest rank's seconds."""
    gathered: list[object] = []

    def gather(everyone: list[object], mine: object, group: object) -> None:
        gathered.append(mine)
        everyone[:] = [*gathered, *gathered][:2]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    for loss, kl, weight, apart, seconds in ((4.0, 3.0, 1.0, 2.0, 3.0), (2.0, 6.0, 2.0, 0.5, 1.0)):
        metrics = StepMetrics()
        metrics.add({"loss": torch.tensor(loss), "kl_loss": torch.tensor(kl)}, weight)
        mask, fresh = torch.ones(1, dtype=torch.int8), torch.ones(1, dtype=torch.bool)
        metrics.add_difference(torch.tensor([apart]), torch.zeros(1), mask, fresh)
        metrics.counts["samples_passed"] = weight
        metrics.seconds["gradients"] = seconds
        means = metrics.means(6.0, _as_group(_OfTwo()))
    assert (means["loss"], means["kl_loss"]) == (1.0, 3.0)
    assert (means[DIFFERENCE], means[f"{DIFFERENCE}_max"], means[AGREEMENT]) == (1.25, 2.0, 2.0)
    assert (means["samples_passed"], means["seconds_gradients"]) == (3.0, 3.0)


def test_weights_digest_sees_everything_but_the_order() -> None:
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    base = weights_digest(digest_tensors(tensors.items()))
    assert weights_digest(digest_tensors(reversed(tensors.items()))) == base
    for changed in ({"a": tensors["a"].view(3, 2)}, {"b": tensors["b"].half()}, {"a": tensors["a"] + 1e-6}):
        assert weights_digest(digest_tensors({**tensors, **changed}.items())) != base


def test_log_probs_and_entropy_match_torch_with_gradients() -> None:
    torch.manual_seed(random.Random(0).randrange(1000))
    logits = torch.randn(7, 11, dtype=torch.float32, requires_grad=True)
    targets = torch.randint(0, 11, (7,))
    group = _as_group(_Alone())
    weights = torch.randn(2, 7)
    ours = log_probs_and_entropy(logits * 3, targets, group, entropy_gradient=True)
    (gradient,) = torch.autograd.grad((torch.stack(ours) * weights).sum(), logits)
    log_softmax = (logits * 3).log_softmax(-1)
    plain = (log_softmax.gather(1, targets[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(-1))
    (expected,) = torch.autograd.grad((torch.stack(plain) * weights).sum(), logits)
    torch.testing.assert_close(torch.stack(ours), torch.stack(plain), atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=0)
    assert not log_probs_and_entropy(logits, targets, group)[1].requires_grad


def test_large_logits_do_not_overflow() -> None:
    logits, targets = torch.tensor([[1000.0, 0.0, 999.0], [-2000.0, -2001.0, -2000.0]]), torch.tensor([2, 0])
    log_probs, entropy = log_probs_and_entropy(logits, targets, _as_group(_Alone()))
    plain = logits.log_softmax(-1)
    torch.testing.assert_close(log_probs, plain.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(entropy, -(plain.exp() * plain).sum(-1))


def test_weights_of_recorded_rollouts_add_up_over_micro_batches() -> None:
    off_policy = OffPolicyMetrics(torch.device("cpu"))
    for ratios in ([3.0, 0.5], [1.0, 1.5]):
        correction = truncated(torch.tensor(ratios).log(), torch.zeros(2), 0.0, 2.0)
        off_policy.add(correction, torch.tensor([True, ratios[1] > 1]))
    assert off_policy.figures(_as_group(_Alone())) == pytest.approx(
        {"recalled_tis": 4.5 / 3, "recalled_tis_max": 2.0, "recalled_tis_clipfrac": 1 / 3}
    )


def test_a_sealed_sample_with_a_foreign_id_is_not_trained_on() -> None:
    """An older version sealed such batches, and their trainer ended at each try."""
    batch = make_batch(groups=1, samples=3)
    first, second, third = batch.samples
    bad = dataclasses.replace(first, tokens=np.where(np.arange(first.total_length) == 0, 264, first.tokens))
    negative = dataclasses.replace(second, tokens=np.where(np.arange(second.total_length) == 1, -1, second.tokens))
    checked = checked_batch(dataclasses.replace(batch, samples=(bad, negative, third)), 264)
    assert [bool(sample.loss_mask.any()) for sample in checked.samples] == [False, False, True]
    assert all(0 <= int(sample.tokens.min()) <= int(sample.tokens.max()) < 264 for sample in checked.samples)
    assert [len(sample.tokens) for sample in checked.samples] == [sample.total_length for sample in batch.samples]
    assert checked.samples[2] is third
