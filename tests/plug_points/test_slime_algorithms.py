"""slime's functions for losses and advantages, by its names, on its own figures."""
# ruff: noqa: E402  there is no slime before its aliases are installed

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from slime_events.plugins.slime.aliases import install_slime_aliases

install_slime_aliases()

from slime.backends.megatron_utils import loss
from slime.backends.megatron_utils.cp_utils import (
    all_gather_with_cp,
    get_sum_of_sample_mean,
    slice_log_prob_with_cp,
    slice_with_cp,
)
from slime.utils import ppo_utils

NEW, OLD = [[-1.0, -2.0, -3.0], [-0.5, -0.5]], [[-1.1, -1.9, -2.5], [-0.4, -0.7]]
MASKS = [[1, 1, 1], [1, 1]]


def rows(values: Any) -> list[Tensor]:
    return [torch.tensor(row, dtype=torch.float32) for row in values]


def close(actual: Any, expected: Any) -> bool:
    if isinstance(expected, list) and expected and isinstance(expected[0], list):
        return all(close(item, other) for item, other in zip(actual, expected, strict=True))
    return torch.allclose(actual, torch.tensor(expected), atol=1e-5)


def test_returns_and_advantages() -> None:
    reinforced = ppo_utils.get_reinforce_plus_plus_returns(
        torch.tensor([1.0, -1.0]), rows([[0.1, 0.2, 0.3], [0.5, 0.5]]), rows(MASKS), [3, 2], [5, 4], 0.1, 1.0
    )
    assert close(reinforced, [[0.94, 0.95, 0.97], [-1.1, -1.05]])
    masked = ppo_utils.get_reinforce_plus_plus_returns(
        rewards=torch.tensor([1.0]), kl=rows([[0.1, 0.2, 0.3, 0.4]]), loss_masks=rows([[1, 0, 1, 0]]),
        response_lengths=[4], total_lengths=[6], kl_coef=0.1, gamma=0.9,
    )  # fmt: skip
    assert close(masked, [[0.7757, 0.873, 0.97, 0.0]])
    baseline = ppo_utils.get_reinforce_plus_plus_baseline_advantages(
        rewards=torch.tensor([0.5, -0.5]), kl=rows([[0.1, 0.2], [0.3, 0.0, 0.1]]),
        loss_masks=rows([[1, 1], [1, 1, 1]]), kl_coef=0.1,
    )  # fmt: skip
    assert close(baseline, [[0.49, 0.48], [-0.53, -0.5, -0.51]])
    grpo = ppo_utils.get_grpo_returns(torch.tensor([1.5, -0.5]), rows([[0.0] * 3, [0.0] * 2]))
    assert close(grpo, [[1.5] * 3, [-0.5] * 2])
    advantages, returns = ppo_utils.get_advantages_and_returns(
        5, 3, torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.0, 0.0, 1.0]), 1.0, 0.9
    )
    assert close(advantages, [0.757, 0.73, 0.7])
    assert close(returns, [0.857, 0.93, 1.0])


def test_losses_and_masks_per_token() -> None:
    kl = ppo_utils.compute_gspo_kl(rows(NEW), rows(OLD), rows(NEW), rows(MASKS))
    assert close(kl, [1 / 6] * 3 + [-0.05] * 2)
    kept, left_out = ppo_utils.compute_opsm_mask(
        SimpleNamespace(opsm_delta=0.05), rows(NEW), rows(OLD), rows([[-1] * 3, [-1] * 2]), rows(MASKS)
    )
    assert (kept.tolist(), left_out.item()) == ([0, 0, 0, 1, 1], pytest.approx(1.0))
    losses, clipped = ppo_utils.compute_policy_loss(torch.log(torch.tensor([0.5, 1.0])), torch.ones(2), 0.2, 0.2, None)
    assert (losses.tolist(), clipped.tolist()) == ([pytest.approx(-1.2), pytest.approx(-1.0)], [1.0, 0.0])
    losses, _ = ppo_utils.compute_cispo_loss(torch.zeros(1), torch.tensor([-2.0]), torch.ones(1), 0.2, 0.2)
    assert losses.tolist() == [2.0]
    assert ppo_utils.compute_approx_kl(torch.tensor([-1.0]), torch.tensor([-3.0]), "k2").tolist() == [2.0]


@pytest.fixture
def alone() -> Iterator[Any]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_log_probs_and_entropy(alone: Any) -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    tokens = torch.tensor([0, 2])
    expected = torch.log_softmax(logits, -1)
    log_probs, entropy = ppo_utils.calculate_log_probs_and_entropy(logits, tokens, alone, with_entropy=True)
    assert torch.allclose(log_probs, expected[torch.arange(2), tokens], atol=1e-6)
    alone_log_probs = ppo_utils.compute_log_probs(logits.clone(), tokens, alone)
    assert alone_log_probs.shape == (2, 1)
    assert torch.allclose(alone_log_probs.squeeze(-1), log_probs)
    assert close(entropy, [0.8323956, 1.0986123])
    (gradient,) = torch.autograd.grad(ppo_utils.compute_entropy_from_logits(logits.clone(), alone).sum(), logits)
    (reference,) = torch.autograd.grad(-(expected.exp() * expected).sum(), logits)
    assert torch.allclose(gradient, reference, atol=1e-6)


def test_nothing_is_cut_over_ranks() -> None:
    values = torch.arange(5.0)
    for whole in (all_gather_with_cp(values, 9, 5), slice_log_prob_with_cp(values, 9, 5), slice_with_cp(values, 0)):
        assert whole is values
    per_sample = get_sum_of_sample_mean([5, 4], [3, 2], rows([[1, 0, 1], [1, 1]]))
    assert per_sample(values).item() == pytest.approx(1.0 + 3.5)
    assert get_sum_of_sample_mean is loss.get_sum_of_sample_mean


def test_corrections_between_engine_and_trainer() -> None:
    args = SimpleNamespace(tis_clip=2.0, tis_clip_low=0.5)
    logs = torch.log(torch.tensor([1.5, 3.0, 0.1]))
    batch = {"pg_loss": torch.ones(3), "train_log_probs": [logs], "rollout_log_probs": [torch.zeros(3)]}
    batch |= {"loss_masks": rows([[1, 1, 1]]), "total_lengths": [5], "response_lengths": [3]}
    bounded, masks, figures = loss.vanilla_tis_function(args, **batch)
    popped, _, _ = loss.icepop_function(args, **batch)
    assert close(bounded, [1.5, 2.0, 0.5])
    assert close(popped, [1.5, 0.0, 0.0])
    assert (len(masks), figures["tis_clipfrac"].tolist()) == (1, [0.0, 1.0, 1.0])
