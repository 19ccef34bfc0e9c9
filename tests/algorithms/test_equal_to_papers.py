"""Every estimator, term and reduction equals its paper's formula in float64, to 1e-6, on shapes drawn at random."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slime_events.algorithms.advantages import compute_advantages
from slime_events.algorithms.estimators import ESTIMATORS
from slime_events.algorithms.objective import policy_objective, sft_objective
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.algorithms.value_model import clipped_value_loss
from slime_events.core.config.algorithm import AlgorithmSettings
from tests.algorithms import plain

GRID = 128
"""Log-probs are multiples of 1 / 128: exact in float32, so that both sides are given the same numbers."""
Samples = list[dict[str, list[Any]]]
COLUMNS = ("new", "old", "rollout", "ref", "entropy", "advantages")
NAMES = sorted(ESTIMATORS)
KINDS = ("k1", "k2", "k3", "low_var_kl")
WITHOUT_CRITIC = [name for name in NAMES if not ESTIMATORS[name].needs_values]


def grid(low: float, high: float) -> st.SearchStrategy[float]:
    return st.integers(round(low * GRID), round(high * GRID)).map(lambda value: value / GRID)


@st.composite
def samples(draw: st.DrawFn) -> Samples:
    """Some samples, of no token, of one, of none that is trained on. Log-probs are within 3 of each other.

    All of it comes from a seed: shrunk samples are mostly empty, and taking each number from hypothesis takes long.
    """
    random = Random(draw(st.integers(0, 2**32)))
    drawn = []
    for length in random.choices(range(6), k=random.randint(1, 4)):
        kept = random.choice([0.0, 0.5, 0.8, 1.0])
        sample: dict[str, list[Any]] = {
            name: [random.randint(-3 * GRID, 0) / GRID for _ in range(length)] for name in COLUMNS
        }
        sample["advantages"] = [random.randint(-2 * GRID, 2 * GRID) / GRID for _ in range(length)]
        sample["masks"] = [int(random.random() < kept) for _ in range(length)]
        drawn.append(sample)
    return drawn


def tensors(drawn: Samples, name: str) -> list[torch.Tensor]:
    return [torch.tensor(sample[name], dtype=torch.int8 if name == "masks" else torch.float32) for sample in drawn]


@st.composite
def algorithms(draw: st.DrawFn) -> AlgorithmSettings:
    engines = draw(st.sampled_from([{}, {"use_tis": True}, {"use_rollout_logprobs": True}]))
    drawn = draw(
        st.fixed_dictionaries(
            {
                "eps_clip": st.sampled_from([0.1, 0.2, 1.0]),
                "eps_clip_high": st.sampled_from([None, 0.28]),
                "eps_clip_c": st.sampled_from([None, 1.5]),
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


def denominators(drawn: Samples, rollouts: list[int]) -> list[float]:
    """The trained tokens of all samples of a sample's rollout."""
    return [
        float(sum(sum(other["masks"]) for other, its in zip(drawn, rollouts, strict=True) if its == mine))
        for mine in rollouts
    ]


@pytest.mark.parametrize("kind", [None, *KINDS])
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(samples(), algorithms(), st.none() | st.lists(st.integers(0, 1), min_size=4, max_size=4))
def test_the_objective_and_its_gradient(
    name: str, kind: Any, drawn: Samples, s: AlgorithmSettings, rollouts: list[int] | None
) -> None:
    s = replace(s, advantage_estimator=name)
    if kind is not None:
        s = replace(s, use_kl_loss=True, kl_loss_coef=0.3, kl_loss_type=kind)
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
            size += abs(float(token.detach())) / divisor
    assert loss.item() == pytest.approx(total.item(), abs=1e-6 * max(1.0, size))
    if total.requires_grad:
        total.backward()
    for mine, leaf in zip(new, leaves, strict=True):
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        scale = max(1.0, gradient.abs().max().item() if len(gradient) else 0.0)
        given_back = torch.zeros_like(mine) if mine.grad is None else mine.grad
        torch.testing.assert_close(given_back.double(), gradient, atol=1e-6 * scale, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WITHOUT_CRITIC)
@settings(max_examples=8, deadline=None)
@given(
    samples(),
    st.lists(grid(-2, 2), min_size=4, max_size=4),
    st.sampled_from([0.1, 0.0]),
    st.sampled_from([0.9, 0.0, 1.0]),
    st.fixed_dictionaries({"normalize_advantages": st.booleans(), "use_opd": st.booleans()}),
)
def test_advantages(
    name: str, kind: Any, drawn: Samples, rewards: list[float], kl_coef: float, gamma: float, after: dict[str, bool]
) -> None:
    s = AlgorithmSettings(
        advantage_estimator=name, kl_coef=kl_coef, kl_loss_type=kind, gamma=gamma, opd_kl_coef=0.3, **after
    )
    rewards = rewards[: len(drawn)]
    own, teacher = tensors(drawn, "old"), tensors(drawn, "rollout")
    advantages, _ = compute_advantages(
        torch.tensor(rewards), own, tensors(drawn, "ref"), tensors(drawn, "masks"), s, teacher_log_probs=teacher
    )
    expected = []
    for sample, reward in zip(drawn, rewards, strict=True):
        kls = [
            float(plain.kl(old - ref, kind)) * mask
            for old, ref, mask in zip(sample["old"], sample["ref"], sample["masks"], strict=True)
        ]
        row = plain.advantages(name, reward, kls, sample["masks"], kl_coef=kl_coef, gamma=gamma)
        expected.append(plain.distilled(row, sample["old"], sample["rollout"], 0.3) if s.use_opd else row)
    precision = 1e-6
    if s.normalize_advantages:
        before, expected = expected, plain.whitened(expected, [sample["masks"] for sample in drawn])
        precision *= max(1.0, stretched(before, expected))
    for mine, row, sample in zip(advantages, expected, drawn, strict=True):
        trained = [place for place, mask in enumerate(sample["masks"]) if mask]
        assert [mine[place].item() for place in trained] == pytest.approx(
            [row[place] for place in trained], rel=1e-6, abs=precision
        )


def stretched(before: list[list[float]], after: list[list[float]]) -> float:
    """Return how much a difference grew: whitening divides by the spread, and so multiplies what float32 rounds off."""
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
    expected = [reward for group in groups for reward in plain.group_rewards(name, group, scale=scale)]
    assert normalize_rewards(flat, [len(group) for group in groups], s) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(samples(), st.booleans())
def test_the_supervised_loss(drawn: Samples, per_token: bool) -> None:
    s = AlgorithmSettings(loss_type="sft_loss", calculate_per_token_loss=per_token)
    loss, _ = sft_objective(tensors(drawn, "new"), tensors(drawn, "masks"), None, s)
    expected = 0.0
    for sample in drawn:
        chosen = [value for value, mask in zip(sample["new"], sample["masks"], strict=True) if mask]
        expected -= sum(chosen) / (1 if per_token else max(1, len(chosen)))
    assert loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@settings(deadline=None)
@given(
    samples(),
    st.lists(grid(-2, 2), min_size=4, max_size=4),
    st.sampled_from([0.0, 0.95, 1.0]),
    st.sampled_from([0.0, 0.9, 1.0]),
)
def test_ppo_s_advantages_and_returns(drawn: Samples, rewards: list[float], gamma: float, lambd: float) -> None:
    """A token that is not trained on is not the policy's: it pays no KL, and the reward may be on it."""
    s = AlgorithmSettings(advantage_estimator="ppo", kl_coef=0.1, gamma=gamma, lambd=lambd)
    rewards = rewards[: len(drawn)]
    old, ref, masks, values = (tensors(drawn, name) for name in ("old", "ref", "masks", "advantages"))
    parts = compute_advantages(torch.tensor(rewards), old, ref, masks, s, values=values)
    expected: tuple[list[float], list[float]] = ([], [])
    for sample, reward in zip(drawn, rewards, strict=True):
        rows = zip(sample["old"], sample["ref"], sample["masks"], strict=True)
        token = [-0.1 * (own - reference) * mask for own, reference, mask in rows]
        if token:
            token[-1] += reward
        for row, part in zip(expected, plain.gae(token, sample["advantages"], gamma, lambd), strict=True):
            row += part
    for mine, row in zip(parts, expected, strict=True):
        assert torch.cat(mine).tolist() == pytest.approx(row, rel=1e-6, abs=2e-6)


@given(samples(), st.sampled_from([0.05, 0.2]))
def test_the_value_loss(drawn: Samples, clip: float) -> None:
    values, old, returns = (torch.cat(tensors(drawn, name)) for name in ("new", "old", "advantages"))
    loss, clipped = clipped_value_loss(values, old, returns, clip)
    rows = zip(values.tolist(), old.tolist(), returns.tolist(), strict=True)
    expected = [
        max((value - target) ** 2, (before + min(max(value - before, -clip), clip) - target) ** 2)
        for value, before, target in rows
    ]
    assert loss.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6)
    far = [abs(value - before) > clip for value, before in zip(values.tolist(), old.tolist(), strict=True)]
    assert clipped.tolist() == far
