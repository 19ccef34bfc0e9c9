"""Each term of the objective by numbers that only this term decides."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from slime_events.algorithms.objective import approx_kl, policy_objective
from slime_events.core.config.algorithm import AlgorithmSettings


def objective(
    new: Tensor, old: Tensor, rollout: Tensor, advantages: Tensor, *, ref: Tensor | None = None, **settings: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Compute the objective of one sample, summed over its tokens."""
    return policy_objective(
        log_probs=[new],
        old_log_probs=[old],
        rollout_log_probs=[rollout],
        ref_log_probs=None if ref is None else [ref],
        advantages=[advantages],
        loss_masks=[torch.ones(len(new))],
        rollout_denoms=None,
        entropy=None,
        settings=AlgorithmSettings(**{"calculate_per_token_loss": True, **settings}),
    )


def test_a_ratio_multiplies_the_kl_before_it_is_bounded() -> None:
    far, near = torch.tensor([-5.0]), torch.tensor([-0.1])
    base = torch.zeros(1)
    k3 = math.exp(5.0) - 1 - 5.0
    assert approx_kl(far, base, "low_var_kl").item() == 10.0
    assert approx_kl(far, base, "low_var_kl", torch.tensor([0.01])).item() == pytest.approx(0.01 * k3, rel=1e-5)
    assert approx_kl(near, base, "low_var_kl", torch.tensor([1e6])).item() == 10.0
    assert approx_kl(near, base, "low_var_kl", torch.tensor([-1e6])).item() == -10.0


@pytest.mark.parametrize(("high", "clipped"), [(None, 0.0), (0.0, 1.0)])
def test_an_upper_clip_of_zero_is_not_that_of_the_lower_side(high: float | None, clipped: float) -> None:
    new, zero = torch.tensor([math.log(1.1)]), torch.zeros(1)
    loss, metrics = objective(new, zero, zero, torch.ones(1), eps_clip=0.2, eps_clip_high=high)
    assert metrics["pg_clipfrac"].item() == clipped
    assert loss.item() == pytest.approx(-1.0 if clipped else -1.1)


@pytest.mark.parametrize("unbiased", [False, True])
def test_an_unbiased_kl_is_weighted_by_a_ratio_that_has_a_gradient_too(unbiased: bool) -> None:
    new = torch.tensor([-0.5, -1.5], requires_grad=True)
    old, ref = torch.tensor([-1.0, -1.0]), torch.tensor([-0.75, -2.0])
    kl_loss: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.5, "kl_loss_type": "k3"}
    loss, metrics = objective(new, old, old, torch.zeros(2), ref=ref, use_unbiased_kl=unbiased, **kl_loss)
    kl = (ref - new).exp() - 1 - (ref - new)
    expected = ((new - old).exp() * kl if unbiased else kl).sum()
    assert metrics["kl_loss"].item() == pytest.approx(expected.item(), rel=1e-5)
    (ours,), (plain,) = torch.autograd.grad(loss, new), torch.autograd.grad(0.5 * expected, new)
    torch.testing.assert_close(ours, plain)


def test_the_difference_to_the_engine_is_that_of_the_policy_before_the_update() -> None:
    new, old, rollout = torch.tensor([-3.0]), torch.tensor([-1.0]), torch.tensor([-1.5])
    _, metrics = objective(new, old, rollout, torch.ones(1))
    assert metrics["train_rollout_logprob_abs_diff"].item() == 0.5


def test_gspo_alone_has_one_ratio_for_a_sample() -> None:
    new, old = torch.tensor([0.0, -0.2]), torch.tensor([-0.1, -0.1])
    rollout, advantages = torch.zeros(2), torch.tensor([1.0, 1.0])
    by_token = [-math.exp(0.1), -math.exp(-0.1)]
    for estimator, expected in (("grpo", sum(by_token)), ("gspo", -2.0)):
        loss, _ = objective(new, old, rollout, advantages, advantage_estimator=estimator)
        assert loss.item() == pytest.approx(expected, rel=1e-5), estimator


def test_dual_clip_acts_on_bad_samples_alone_and_a_clip_counts_where_it_acts() -> None:
    """Ratios 0.5 and 4 with good and bad advantages: four tokens."""
    new = torch.tensor([0.5, 0.5, 4.0, 4.0]).log()
    zero, advantages = torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, metrics = objective(new, zero, zero, advantages, eps_clip=0.2, eps_clip_c=3.0)
    assert loss.item() == pytest.approx(-0.5 + 0.8 - 1.2 + 3.0)
    assert metrics["pg_clipfrac"].item() == 2.0
    loss, _ = objective(new, zero, zero, advantages, eps_clip=0.2)
    assert loss.item() == pytest.approx(-0.5 + 0.8 - 1.2 + 4.0)


def test_tis_is_the_trainer_s_probability_over_the_engine_s_within_both_bounds() -> None:
    old = torch.zeros(3)
    rollout = -torch.tensor([4.0, 1.5, 0.1]).log()
    loss, metrics = objective(old, old, rollout, torch.ones(3), use_tis=True, tis_clip_low=0.5, tis_clip=2.0)
    assert loss.item() == pytest.approx(-(2.0 + 1.5 + 0.5))
    assert metrics["tis"].item() == pytest.approx(4.0 + 1.5 + 0.1)
    assert metrics["tis_clipfrac"].item() == 2.0


def test_opsm_leaves_out_bad_samples_that_drifted_alone() -> None:
    new, old = torch.tensor([-1.0, -1.0]), torch.tensor([-0.5, -0.5])
    for advantage, delta, left_out in ((1.0, 0.1, 0.0), (-1.0, 0.1, 2.0), (-1.0, 0.9, 0.0)):
        advantages = torch.full((2,), advantage)
        _, metrics = objective(new, old, old, advantages, use_opsm=True, opsm_delta=delta)
        assert metrics["opsm_clipfrac"].item() == left_out
