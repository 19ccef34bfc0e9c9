"""PPO's critic: advantages, returns and the value loss against plain loops in float64, and what excludes it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ImpossibleCombination
from slime_events.algorithms.advantages import compute_advantages
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.algorithms.segments import gae
from slime_events.algorithms.train_arguments import parse_train
from slime_events.algorithms.value_model import value_figures, value_objective
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.flags import ParsedTrain

number = st.floats(-3, 3, width=32)
token = st.tuples(number, number, number, st.booleans())
"""Log-prob, the reference's, value, whether it is trained on."""
samples = st.lists(st.tuples(number, st.lists(token, min_size=1, max_size=12)), min_size=1, max_size=4)
factor = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def ppo(**given: object) -> AlgorithmSettings:
    return AlgorithmSettings(advantage_estimator="ppo", **given)  # type: ignore[arg-type]


def plain(reward: float, tokens: list[tuple[float, ...]], s: AlgorithmSettings) -> tuple[list[float], list[float]]:
    """Advantages and returns of one sample: Schulman et al. (2016), equations 11 to 16, token by token. A token that is
    not trained on is not the policy's, and pays no KL."""
    rewards = [-s.kl_coef * (own - reference) * is_trained for own, reference, _, is_trained in tokens]
    rewards[-1] += reward
    values = [value for _, _, value, _ in tokens]
    advantages, following = [0.0] * len(tokens), 0.0
    for t in reversed(range(len(tokens))):
        after = values[t + 1] if t + 1 < len(tokens) else 0.0
        following = rewards[t] + s.gamma * after - values[t] + s.gamma * s.lambd * following
        advantages[t] = following
    return advantages, [advantage + value for advantage, value in zip(advantages, values, strict=True)]


@settings(deadline=None, max_examples=50)
@given(samples, factor, factor, st.sampled_from([0.0, 0.1]), st.booleans())
def test_advantages_and_returns_are_the_plain_loop(batch, gamma, lambd, kl_coef, whitened) -> None:
    s = ppo(gamma=gamma, lambd=lambd, kl_coef=kl_coef, normalize_advantages=whitened)
    own, reference, values, masks = (
        [torch.tensor([float(row[column]) for row in tokens]) for _, tokens in batch] for column in range(4)
    )
    rewards = torch.tensor([reward for reward, _ in batch])
    advantages, returns = compute_advantages(rewards, own, reference, masks, s, values=values)
    expected = [plain(reward, tokens, s) for reward, tokens in batch]
    wanted = [advantage for part, _ in expected for advantage in part]
    if whitened:
        wanted = whiten(wanted, [row[3] for _, tokens in batch for row in tokens])
    close = {"rel": 1e-4, "abs": 2e-4} if whitened else {"rel": 1e-6, "abs": 1e-5}
    assert torch.cat(advantages).tolist() == pytest.approx(wanted, **close)
    assert torch.cat(returns).tolist() == pytest.approx([r for _, part in expected for r in part], rel=1e-6, abs=1e-5)


def whiten(values: list[float], mask: list[bool]) -> list[float]:
    trained = [value for value, is_trained in zip(values, mask, strict=True) if is_trained]
    mean = math.fsum(trained) / max(len(trained), 1)
    if len(trained) < 2:
        return [value - mean for value in values]
    variance = math.fsum((value - mean) ** 2 for value in trained) / (len(trained) - 1)
    return [(value - mean) / math.sqrt(variance + 1e-8) for value in values]


def test_at_float64_the_difference_to_the_loop_is_rounding_alone() -> None:
    torch.manual_seed(0)
    s, length = ppo(gamma=0.99, lambd=0.95), 400
    values = torch.randn(length, dtype=torch.float64)
    rewards = torch.zeros(1, length, dtype=torch.float64)
    rewards[0, -1] = 1.0
    found = gae(rewards, values[None], s.gamma, s.lambd)[0]
    expected, _ = plain(1.0, [(0.0, 0.0, float(value), True) for value in values], s)
    assert found.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.lists(token, min_size=1, max_size=8), min_size=1, max_size=4),
    st.booleans(),
)
def test_the_value_loss_is_the_plain_loop(batch, per_token) -> None:
    s = ppo(value_clip=0.3, calculate_per_token_loss=per_token)
    new, old, returns, masks = (
        [torch.tensor([float(row[column]) for row in rows]) for rows in batch] for column in range(4)
    )
    for part in new:
        part.requires_grad_()
    about = {"old_values": old, "returns": returns, "loss_masks": masks, "rollout_denoms": None, "settings": s}
    loss, figures = value_objective(values=new, **about)
    total = clipped = 0.0
    for rows in batch:
        weight = 1.0 if per_token else 1 / max(1, sum(row[3] for row in rows))
        for value, before, target, is_trained in rows:
            moved = min(max(value - before, -0.3), 0.3)
            total += weight * is_trained * max((value - target) ** 2, (before + moved - target) ** 2)
            clipped += weight * is_trained * (abs(torch.tensor(value) - torch.tensor(before)) > 0.3).item()
    assert loss.item() == pytest.approx(total, rel=1e-5, abs=1e-5)
    assert figures["value_loss"] == loss
    assert figures["value_clipfrac"].item() == pytest.approx(clipped, rel=1e-5, abs=1e-6)
    loss.backward()
    for part, mask in zip(new, masks, strict=True):
        assert part.grad is not None
        assert not part.grad[mask == 0].any()


def test_figures_say_how_much_the_critic_explains() -> None:
    masks, returns = [torch.ones(2), torch.tensor([1.0, 0.0])], [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 99.0])]
    perfect = value_figures(returns, returns, returns, masks)
    assert perfect == {"values": 2.0, "returns": 2.0, "advantages": 2.0, "explained_variance": 1.0}
    constant = [torch.zeros(2), torch.zeros(2)]
    assert value_figures(constant, returns, returns, masks)["explained_variance"] == pytest.approx(0.0)
    assert "explained_variance" not in value_figures(returns, constant, constant, masks)
    assert value_figures(returns, returns, returns, [torch.zeros(2), torch.zeros(2)]) == {}


def test_rewards_are_trained_as_they_were_graded() -> None:
    assert normalize_rewards([1.0, 0.0, 0.5], [2, 1], ppo()) == [1.0, 0.0, 0.5]


LEAST = "--hf-checkpoint m --prompt-data p --rollout-batch-size 4 --num-rollout 2 --rm-type f1"
PPO = f"{LEAST} --advantage-estimator ppo"


def parsed(words: str) -> ParsedTrain:
    return parse_train(words.split())


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("--critic-num-nodes 2", "critic_num_nodes 2"),
        ("--actor-num-gpus-per-node 2 --critic-num-gpus-per-node 1", "critic_num_gpus_per_node 1"),
        ("--loss-type sft_loss", "advantage_estimator ppo"),
        ("--critic-lr 1e-7 --min-lr 5e-7 --lr 1e-6", "critic_lr"),
        ("--critic-lr-warmup-iters 9 --lr-decay-style linear --lr-decay-iters 8", "critic_lr_warmup_iters 9"),
    ],
)
def test_what_excludes_a_critic_is_named(given: str, name: str) -> None:
    with pytest.raises(ImpossibleCombination, match=name):
        parsed(f"{PPO} {given}")


def test_slimes_flags_of_a_critic_are_taken() -> None:
    given = (
        "--critic-num-nodes 1 --critic-num-gpus-per-node 1 --critic-load c --critic-save s --critic-lr 1e-5 "
        "--critic-lr-warmup-iters 100 --num-critic-only-steps 10 --value-clip 0.3 --lambd 0.95 --kl-coef 0.01"
    )
    found = parsed(f"{PPO} {given}")
    trainer, algorithm = found.settings.trainer, found.settings.algorithm
    assert (trainer.critic_load, trainer.critic_lr, trainer.critic_lr_warmup_iters) == ("c", 1e-5, 100)
    assert (algorithm.num_critic_only_steps, algorithm.value_clip, algorithm.lambd) == (10, 0.3, 0.95)
    (note,) = (note for note in found.notes if "critic" in note)
    assert "--critic-save" in note


def test_settings_of_a_critic_that_is_not_there_are_said_to_be_idle() -> None:
    given = "--critic-lr 1e-5 --lambd 0.9 --num-critic-only-steps 3"
    (note,) = (note for note in parsed(f"{LEAST} {given}").notes if "no critic" in note)
    assert all(name in note for name in ("critic_lr", "lambd", "num_critic_only_steps"))
    own = "--custom-advantage-function-path a.b.c --lambd 0.9"
    assert not [note for note in parsed(f"{LEAST} {own}").notes if "no critic" in note]
