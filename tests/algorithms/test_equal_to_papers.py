"""Every estimator, term and reduction equals its paper's formula in float64, to 1e-6, on shapes drawn at random."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slime_events.algorithms.advantages import compute_advantages
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.algorithms.objective import policy_objective, sft_objective
from slime_events.algorithms.opd import distil
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.algorithms.value_model import clipped_value_loss
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.algorithms import plain

GRID = 128
"""Log-probs are multiples of 1 / 128: exact in float32, so that both sides are given the same numbers."""
COLUMNS = ("new", "old", "rollout", "ref", "entropy", "advantages")
NAMES = sorted(ESTIMATORS)
WITHOUT_CRITIC = [name for name in NAMES if not ESTIMATORS[name].needs_values]


def grid(low: float, high: float) -> st.SearchStrategy[float]:
    return st.integers(round(low * GRID), round(high * GRID)).map(lambda value: value / GRID)


@st.composite
def samples(draw: st.DrawFn) -> list[dict[str, list[Any]]]:
    """Some samples, of no token, of one, of none that is trained on. Log-probs are within 2 of each other."""
    drawn = []
    for length in draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)):
        sample: dict[str, list[Any]] = {
            name: draw(st.lists(grid(-2, 0), min_size=length, max_size=length)) for name in COLUMNS
        }
        sample["advantages"] = draw(st.lists(grid(-2, 2), min_size=length, max_size=length))
        kinds = st.sampled_from([[0] * length, [1] * length]) | st.lists(
            st.sampled_from([0, 1]), min_size=length, max_size=length
        )
        sample["masks"] = draw(kinds)
        drawn.append(sample)
    return drawn


def tensors(drawn: list[dict[str, list[Any]]], name: str) -> list[torch.Tensor]:
    return [torch.tensor(sample[name], dtype=torch.int8 if name == "masks" else torch.float32) for sample in drawn]


@st.composite
def algorithms(draw: st.DrawFn) -> AlgorithmSettings:
    engines = draw(st.sampled_from([{}, {"use_tis": True}, {"use_rollout_logprobs": True}]))
    drawn = draw(
        st.fixed_dictionaries(
            {
                "advantage_estimator": st.sampled_from(NAMES),
                "eps_clip": st.sampled_from([0.1, 0.2, 1.0]),
                "eps_clip_high": st.sampled_from([None, 0.28]),
                "eps_clip_c": st.sampled_from([None, 1.5]),
                "use_kl_loss": st.booleans(),
                "kl_loss_coef": st.sampled_from([0.0, 0.3]),
                "kl_loss_type": st.sampled_from(["k1", "k2", "k3", "low_var_kl"]),
                "use_unbiased_kl": st.booleans(),
                "entropy_coef": st.sampled_from([0.0, 0.3]),
                "use_opsm": st.booleans(),
                "opsm_delta": st.sampled_from([0.0101, 0.51]),
                "tis_clip": st.sampled_from([1.21, 2.0]),
                "tis_clip_low": st.sampled_from([0.0, 0.51]),
                "calculate_per_token_loss": st.booleans(),
            }
        )
    )
    return AlgorithmSettings(**drawn, **engines)


def denominators(drawn: list[dict[str, list[Any]]], rollouts: list[int]) -> list[float]:
    """The trained tokens of all samples of a sample's rollout."""
    return [
        float(sum(sum(other["masks"]) for other, its in zip(drawn, rollouts, strict=True) if its == mine))
        for mine in rollouts
    ]


@settings(max_examples=150, deadline=None)
@given(samples(), algorithms(), st.none() | st.lists(st.integers(0, 1), min_size=4, max_size=4))
def test_the_objective_and_its_gradient(
    drawn: list[dict[str, list[Any]]], s: AlgorithmSettings, rollouts: list[int] | None
) -> None:
    denoms = None if rollouts is None else denominators(drawn, rollouts[: len(drawn)])
    new = [row.requires_grad_() for row in tensors(drawn, "new")]
    loss, _ = policy_objective(
        log_probs=new,
        old_log_probs=tensors(drawn, "old"),
        rollout_log_probs=tensors(drawn, "rollout"),
        ref_log_probs=tensors(drawn, "ref"),
        advantages=tensors(drawn, "advantages"),
        loss_masks=tensors(drawn, "masks"),
        rollout_denoms=denoms,
        entropy=tensors(drawn, "entropy"),
        settings=s,
    )
    loss.backward()
    total, size = torch.zeros((), dtype=torch.float64), 0.0
    leaves = []
    for place, sample in enumerate(drawn):
        leaf = torch.tensor(sample["new"], dtype=torch.float64, requires_grad=True)
        leaves.append(leaf)
        tokens = plain.sample_tokens(s, sample | {"new": list(leaf.unbind())})
        trained = sum(sample["masks"]) if denoms is None else denoms[place]
        divisor = 1.0 if s.calculate_per_token_loss else max(1.0, trained)
        for token in tokens:
            total = total + token / divisor
            size += abs(float(token)) / divisor
    assert loss.item() == pytest.approx(float(total), abs=1e-6 * max(1.0, size))
    if total.requires_grad:
        total.backward()
    for mine, leaf in zip(new, leaves, strict=True):
        wanted = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        scale = max(1.0, wanted.abs().max().item() if len(wanted) else 0.0)
        given_back = torch.zeros_like(mine) if mine.grad is None else mine.grad
        torch.testing.assert_close(given_back.double(), wanted, atol=1e-6 * scale, rtol=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    samples(),
    st.sampled_from(WITHOUT_CRITIC),
    st.lists(grid(-2, 2), min_size=4, max_size=4),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from(["k1", "k2", "k3", "low_var_kl"]),
    st.sampled_from([0.0, 0.9, 1.0]),
    st.booleans(),
)
def test_advantages(
    drawn: list[dict[str, list[Any]]],
    name: str,
    rewards: list[float],
    kl_coef: float,
    kind: Any,
    gamma: float,
    whiten: bool,
) -> None:
    s = AlgorithmSettings(
        advantage_estimator=name, kl_coef=kl_coef, kl_loss_type=kind, gamma=gamma, normalize_advantages=whiten
    )
    rewards = rewards[: len(drawn)]
    found, _ = compute_advantages(
        torch.tensor(rewards), tensors(drawn, "old"), tensors(drawn, "ref"), tensors(drawn, "masks"), s
    )
    wanted = []
    for sample, reward in zip(drawn, rewards, strict=True):
        kls = [
            float(plain.kl(old - ref, kind)) * mask
            for old, ref, mask in zip(sample["old"], sample["ref"], sample["masks"], strict=True)
        ]
        wanted.append(plain.advantages(name, reward, kls, sample["masks"], kl_coef=kl_coef, gamma=gamma))
    precision = 1e-6
    if whiten:
        before, wanted = wanted, plain.whitened(wanted, [sample["masks"] for sample in drawn])
        precision *= max(1.0, stretched(before, wanted))
    for mine, row, sample in zip(found, wanted, drawn, strict=True):
        trained = [place for place, mask in enumerate(sample["masks"]) if mask]
        assert [mine[place].item() for place in trained] == pytest.approx(
            [row[place] for place in trained], rel=1e-6, abs=precision
        )


def stretched(before: list[list[float]], after: list[list[float]]) -> float:
    """How much a difference grew: whitening divides by the spread, and so multiplies what float32 rounds off."""
    flat, white = ([value for row in rows for value in row] for rows in (before, after))
    spread = max(flat, default=0.0) - min(flat, default=0.0)
    return (max(white) - min(white)) / spread if spread else 1.0


@given(
    st.lists(st.lists(grid(-9, 9), min_size=1, max_size=6), min_size=1, max_size=4),
    st.sampled_from(NAMES),
    st.booleans(),
)
def test_rewards_of_groups(groups: list[list[float]], name: str, scale: bool) -> None:
    s = AlgorithmSettings(advantage_estimator=name, grpo_std_normalization=scale)
    flat = [reward for group in groups for reward in group]
    wanted = [one for group in groups for one in plain.group_rewards(name, group, scale=scale)]
    assert normalize_rewards(flat, [len(group) for group in groups], s) == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@given(samples(), st.booleans())
def test_the_supervised_loss(drawn: list[dict[str, list[Any]]], per_token: bool) -> None:
    s = AlgorithmSettings(loss_type="sft_loss", calculate_per_token_loss=per_token)
    loss, _ = sft_objective(tensors(drawn, "new"), tensors(drawn, "masks"), None, s)
    wanted = 0.0
    for sample in drawn:
        chosen = [value for value, mask in zip(sample["new"], sample["masks"], strict=True) if mask]
        wanted -= sum(chosen) / (1 if per_token else max(1, len(chosen)))
    assert loss.item() == pytest.approx(wanted, rel=1e-6, abs=1e-6)


@settings(deadline=None)
@given(
    samples(),
    st.lists(grid(-2, 2), min_size=4, max_size=4),
    st.sampled_from([0.0, 0.95, 1.0]),
    st.sampled_from([0.0, 0.9, 1.0]),
)
def test_ppo_s_advantages_and_returns(
    drawn: list[dict[str, list[Any]]], rewards: list[float], gamma: float, lambd: float
) -> None:
    """A token that is not trained on is not the policy's: it pays no KL, and the reward may be on it."""
    s = AlgorithmSettings(advantage_estimator="ppo", kl_coef=0.1, gamma=gamma, lambd=lambd)
    rewards = rewards[: len(drawn)]
    old, ref, masks, values = (tensors(drawn, name) for name in ("old", "ref", "masks", "advantages"))
    found = compute_advantages(torch.tensor(rewards), old, ref, masks, s, values=values)
    wanted: tuple[list[float], list[float]] = ([], [])
    for sample, reward in zip(drawn, rewards, strict=True):
        rows = zip(sample["old"], sample["ref"], sample["masks"], strict=True)
        token = [-0.1 * (own - reference) * mask for own, reference, mask in rows]
        if token:
            token[-1] += reward
        for row, part in zip(wanted, plain.gae(token, sample["advantages"], gamma, lambd), strict=True):
            row += part
    for mine, row in zip(found, wanted, strict=True):
        assert torch.cat(mine).tolist() == pytest.approx(row, rel=1e-6, abs=2e-6)


@given(samples(), st.sampled_from([0.05, 0.2]))
def test_the_value_loss(drawn: list[dict[str, list[Any]]], clip: float) -> None:
    values, old, returns = (torch.cat(tensors(drawn, name)) for name in ("new", "old", "advantages"))
    loss, clipped = clipped_value_loss(values, old, returns, clip)
    rows = zip(values.tolist(), old.tolist(), returns.tolist(), strict=True)
    wanted = [
        max((value - target) ** 2, (before + min(max(value - before, -clip), clip) - target) ** 2)
        for value, before, target in rows
    ]
    assert loss.tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-6)
    far = [abs(value - before) > clip for value, before in zip(values.tolist(), old.tolist(), strict=True)]
    assert clipped.tolist() == far


@given(samples(), st.sampled_from([0.3, 1.0]))
def test_distillation(drawn: list[dict[str, list[Any]]], coef: float) -> None:
    advantages, student, teacher = (torch.cat(tensors(drawn, name)) for name in ("advantages", "new", "ref"))
    found, kl = distil(advantages, student, teacher, coef)
    apart = [one - other for one, other in zip(student.tolist(), teacher.tolist(), strict=True)]
    assert kl.tolist() == pytest.approx(apart, rel=1e-6, abs=1e-6)
    wanted = [advantage - coef * one for advantage, one in zip(advantages.tolist(), apart, strict=True)]
    assert found.tolist() == pytest.approx(wanted, rel=1e-6, abs=1e-6)
