"""Test properties of the objective and its parts. `test_equal_to_papers` has their values."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ImpossibleCombination, TrainerError
from slime_events.algorithms.advantages import compute_advantages, masked_whiten
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.algorithms.estimators.cispo import cispo_loss
from slime_events.algorithms.estimators.estimator import normalize_group
from slime_events.algorithms.mis import Level, MisRule, Mode, mis_weights
from slime_events.algorithms.objective import approx_kl, policy_objective, token_weights, truncated
from slime_events.algorithms.segments import Segments, discounted_returns, gae
from slime_events.core.config.algorithm import AlgorithmSettings

masks = st.lists(st.lists(st.sampled_from([0, 1]), max_size=12), min_size=1, max_size=6)
log_prob = st.floats(-30, 0, width=32)


def batch(sizes=(3, 1, 5), seed=0):
    """Keyword arguments of `policy_objective`, a bit off policy, the first token of the last sample masked."""
    make = torch.Generator().manual_seed(seed)
    rows = {
        name: [-torch.rand(size, generator=make) for size in sizes]
        for name in ("log_probs", "old_log_probs", "rollout_log_probs", "ref_log_probs", "entropy")
    }
    for row in rows["log_probs"]:
        row.requires_grad_()
    loss_masks = [torch.ones(size, dtype=torch.int8) for size in sizes]
    loss_masks[-1][0] = 0
    advantages = [torch.randn(size, generator=make) for size in sizes]
    return {**rows, "advantages": advantages, "loss_masks": loss_masks, "rollout_denoms": None}


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
@pytest.mark.parametrize("per_token", [False, True])
def test_micro_batches_add_up_to_the_whole(estimator, per_token):
    s = AlgorithmSettings(
        advantage_estimator=estimator, use_opsm=True, use_tis=True, calculate_per_token_loss=per_token
    )
    whole = batch((4, 2, 7))
    loss, metrics = policy_objective(**whole, settings=s)
    parts = [
        policy_objective(**{k: v[i : i + 1] if isinstance(v, list) else v for k, v in whole.items()}, settings=s)
        for i in range(3)
    ]
    assert sum(part.item() for part, _ in parts) == pytest.approx(loss.item(), rel=1e-5)
    for name, value in metrics.items():
        assert sum(m[name].item() for _, m in parts) == pytest.approx(value.item(), rel=1e-4, abs=1e-5), name


def test_a_masked_token_can_be_anything_and_gets_no_gradient():
    given_batch = batch()
    with torch.no_grad():
        given_batch["log_probs"][-1][0] = -math.inf
    given_batch["rollout_log_probs"][-1][0] = -math.inf
    loss, _ = policy_objective(
        **given_batch, settings=AlgorithmSettings(use_tis=True, use_kl_loss=True, kl_loss_coef=1)
    )
    loss.backward()
    gradients = torch.cat([row.grad for row in given_batch["log_probs"]])
    assert torch.isfinite(loss)
    assert torch.isfinite(gradients).all()
    assert given_batch["log_probs"][-1].grad[0] == 0
    assert (gradients != 0).sum() > 0


def test_on_policy_gradient_is_minus_the_advantage():
    given_batch = batch()
    given_batch["old_log_probs"] = [row.detach() for row in given_batch["log_probs"]]
    loss, metrics = policy_objective(**given_batch, settings=AlgorithmSettings())
    loss.backward()
    torch.testing.assert_close(given_batch["log_probs"][0].grad, -given_batch["advantages"][0] / 3)
    assert metrics["ppo_kl"] == 0
    assert metrics["pg_clipfrac"] == 0


def test_a_fan_out_rollout_weighs_one():
    segments = Segments.of([torch.ones(2), torch.ones(6)])
    weights = token_weights(segments, per_token=False, rollout_denoms=[8.0, 8.0])
    assert weights.sum().item() == pytest.approx(1)
    with pytest.raises(TrainerError):
        token_weights(segments, per_token=False, rollout_denoms=[8.0])


@given(masks)
def test_reduction_is_a_plain_loop(rows):
    segments = Segments.of([torch.tensor(row, dtype=torch.int8) for row in rows])
    x = torch.arange(1.0, sum(map(len, rows)) + 1)
    naive, start = 0.0, 0
    for row in rows:
        naive += sum(x[start + i].item() for i, m in enumerate(row) if m) / max(sum(row), 1)
        start += len(row)
    assert (x * token_weights(segments, per_token=False)).sum().item() == pytest.approx(naive, rel=1e-5)
    torch.testing.assert_close(segments.unpad(segments.pad(x)), x)


@given(st.lists(st.tuples(log_prob, log_prob), min_size=1, max_size=20))
def test_k3_is_never_negative(pairs):
    new, base = torch.tensor(pairs).unbind(1)
    assert (approx_kl(new, base, "k3") >= 0).all()
    bounded = approx_kl(new, base, "low_var_kl")
    assert (bounded >= 0).all()
    assert (bounded <= 10).all()


@given(st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=20), st.floats(0, 1))
def test_discounted_returns_are_the_recurrence(rewards, discount):
    got = discounted_returns(torch.tensor([rewards]), discount)[0].tolist()
    following = 0.0
    for i in reversed(range(len(rewards))):
        following = rewards[i] + discount * following
        assert got[i] == pytest.approx(following, rel=1e-4, abs=1e-4)


def test_gae_at_lambda_zero_is_the_td_error():
    rewards, values = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.25]])
    assert gae(rewards, values, 0.5, 0.0).tolist() == [[0.625, 1.75]]


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_advantages_whiten_over_all_ranks(estimator):
    s = AlgorithmSettings(advantage_estimator=estimator, kl_coef=0.1, normalize_advantages=True)
    b = batch((3, 4, 2, 5))
    rewards = torch.tensor([1.0, -1.0, 0.5, 0.0])
    values = [row.sin() for row in b["rollout_log_probs"]] if ESTIMATORS[estimator].needs_values else None

    def computed(part: slice, all_reduce=None):
        inputs = (rewards[part], *(b[name][part] for name in ("log_probs", "ref_log_probs", "loss_masks")), s)
        return compute_advantages(*inputs, values=values and values[part], all_reduce=all_reduce)[0]

    whole = computed(slice(None))
    kept = torch.cat(whole)[torch.cat(b["loss_masks"]) != 0]
    assert kept.mean().item() == pytest.approx(0, abs=1e-6)
    assert kept.std().item() == pytest.approx(1, rel=1e-5)
    seen = []

    def first_call(moments):
        seen.append(moments)
        return moments

    halves = slice(0, 2), slice(2, 4)
    for half in halves:
        computed(half, first_call)
    total = seen[0] + seen[1]
    for half in halves:
        torch.testing.assert_close(torch.cat(computed(half, lambda _: total)), torch.cat(whole[half]))


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=2, max_size=8))
def test_grpo_advantages_of_a_group_sum_to_zero(rewards):
    ones = [torch.ones(1) for _ in rewards]
    normalized = torch.tensor(normalize_group(rewards, scale=True))
    advantages, _ = compute_advantages(normalized, ones, None, ones, AlgorithmSettings())
    assert torch.cat(advantages).sum().item() == pytest.approx(0, abs=1e-4)


def test_whitening_one_token_only_centres():
    assert masked_whiten(torch.tensor([3.0, 5.0]), torch.tensor([1, 0])).tolist() == [0.0, 2.0]


def test_a_reference_that_is_missing_or_ragged_is_named():
    b = batch()
    with pytest.raises(ImpossibleCombination, match="kl_coef"):
        compute_advantages(torch.zeros(3), b["log_probs"], None, b["loss_masks"], AlgorithmSettings(kl_coef=0.1))
    b["ref_log_probs"] = None
    with pytest.raises(ImpossibleCombination, match="use_kl_loss"):
        policy_objective(**b, settings=AlgorithmSettings(use_kl_loss=True))
    b["advantages"][0] = torch.ones(9)
    with pytest.raises(TrainerError, match="advantages"):
        policy_objective(**b, settings=AlgorithmSettings())


def test_cispo_gradient_is_the_bounded_weight():
    log_probs = torch.tensor([-1.0, -1.0], requires_grad=True)
    old = torch.tensor([-3.0, -1.0])
    loss, _ = cispo_loss(old - log_probs, log_probs, torch.tensor([2.0, 2.0]), 0.2, 0.3)
    loss.sum().backward()
    torch.testing.assert_close(log_probs.grad, torch.tensor([-2.6, -2.0]))


def test_engine_log_probs_as_old_policy():
    b = batch()
    b["rollout_log_probs"] = [row.detach() for row in b["log_probs"]]
    _, metrics = policy_objective(**b, settings=AlgorithmSettings(use_rollout_logprobs=True))
    assert metrics["ppo_kl"] == 0


def test_tis_bounds_both_sides():
    correction = truncated(torch.tensor([0.0, 0.0]), torch.tensor([-3.0, 3.0]), 0.5, 2.0)
    assert correction.weight.tolist() == [2.0, 0.5]
    assert correction.clipped.tolist() == [1.0, 1.0]


def test_mis_rejects_a_sample_for_one_token():
    segments = Segments.of([torch.ones(2), torch.ones(1)])
    train, rollout = torch.tensor([-20.0, -1.0, -1.0]), torch.tensor([-1.0, -1.0, -1.5])
    weights, mask = mis_weights(train, rollout, segments, MisRule(level=Level.SEQUENCE, mode=Mode.CLIP, veto=1e-4))
    assert mask.tolist() == [0.0, 0.0, 1.0]
    assert weights.tolist() == pytest.approx([0.5, 0.5, math.exp(0.5)])
    weights, _ = mis_weights(train, rollout, segments, MisRule(batch_normalize=True))
    assert weights.mean().item() == pytest.approx(1)


def test_segments_of_nothing_are_refused() -> None:
    with pytest.raises(TrainerError):
        Segments.of([])
