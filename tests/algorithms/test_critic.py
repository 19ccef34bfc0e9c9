"""PPO's critic: what it learns from, how good it was, and what excludes it. The formulas: test_equal_to_papers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from schemas.errors import ImpossibleCombination, TrainerError
from slime_events.algorithms.advantages import compute_advantages
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.algorithms.train_arguments import parse_train
from slime_events.algorithms.value_model import value_figures, value_objective
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.flags import ParsedTrain
from slime_events.core.config.paths import missing_paths


def ppo(**settings: object) -> AlgorithmSettings:
    return AlgorithmSettings(advantage_estimator="ppo", **settings)  # type: ignore[arg-type]


def test_returns_are_never_whitened_and_advantages_are() -> None:
    torch.manual_seed(0)
    values, masks = list(torch.randn(3, 5)), list(torch.ones(3, 5))
    rewards, nothing = torch.tensor([1.0, 0.0, 1.0]), [torch.zeros(5)] * 3
    plain, white = (
        compute_advantages(rewards, nothing, None, masks, ppo(lambd=0.9, normalize_advantages=on), values=values)
        for on in (False, True)
    )
    torch.testing.assert_close(plain[1], white[1])
    torch.testing.assert_close(torch.cat(plain[1]), torch.cat(plain[0]) + torch.cat(values))
    assert torch.cat(white[0]).mean().item() == pytest.approx(0, abs=1e-6)
    with pytest.raises(TrainerError, match="critic"):
        compute_advantages(rewards, nothing, None, masks, ppo())


@pytest.mark.parametrize("per_token", [False, True])
def test_the_value_loss_of_micro_batches_adds_up_and_leaves_masked_tokens_alone(per_token: bool) -> None:
    torch.manual_seed(0)
    s, lengths = ppo(value_clip=0.3, calculate_per_token_loss=per_token), (4, 2, 7)
    rows = {name: [torch.randn(length) for length in lengths] for name in ("values", "old_values", "returns")}
    rows["loss_masks"] = [(torch.arange(length) % 3 != 1).int() for length in lengths]
    for value in rows["values"]:
        value.requires_grad_()
    loss, figures = value_objective(**rows, rollout_denoms=None, settings=s)
    parts = [
        value_objective(**{name: [row[i]] for name, row in rows.items()}, rollout_denoms=None, settings=s)
        for i in range(3)
    ]
    assert sum(part.item() for part, _ in parts) == pytest.approx(loss.item(), rel=1e-5)
    clipped = sum(part["value_clipfrac"].item() for _, part in parts)
    assert clipped == pytest.approx(figures["value_clipfrac"].item(), rel=1e-5)
    assert clipped > 0
    loss.backward()
    for value, mask in zip(rows["values"], rows["loss_masks"], strict=True):
        assert value.grad is not None
        assert not value.grad[mask == 0].any()
        assert value.grad[mask != 0].any()


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
    ("flags", "name"),
    [
        ("--critic-num-nodes 2", "critic_num_nodes 2"),
        ("--actor-num-gpus-per-node 2 --critic-num-gpus-per-node 1", "critic_num_gpus_per_node 1"),
        ("--loss-type sft_loss", "advantage_estimator ppo"),
        ("--critic-lr 1e-7 --min-lr 5e-7 --lr 1e-6", "critic_lr"),
        ("--critic-lr-warmup-iters 9 --lr-decay-style linear --lr-decay-iters 8", "critic_lr_warmup_iters 9"),
    ],
)
def test_what_excludes_a_critic_is_named(flags: str, name: str) -> None:
    with pytest.raises(ImpossibleCombination, match=name):
        parsed(f"{PPO} {flags}")


def test_slimes_flags_of_a_critic_are_taken() -> None:
    flags = (
        "--critic-num-nodes 1 --critic-num-gpus-per-node 1 --critic-load c --critic-save s --critic-lr 1e-5 "
        "--critic-lr-warmup-iters 100 --num-critic-only-steps 10 --value-clip 0.3 --lambd 0.95 --kl-coef 0.01"
    )
    parsed_line = parsed(f"{PPO} {flags}")
    trainer, algorithm = parsed_line.settings.trainer, parsed_line.settings.algorithm
    assert (trainer.critic_load, trainer.critic_lr, trainer.critic_lr_warmup_iters) == ("c", 1e-5, 100)
    assert (algorithm.num_critic_only_steps, algorithm.value_clip, algorithm.lambd) == (10, 0.3, 0.95)
    (note,) = (note for note in parsed_line.notes if "critic" in note)
    assert "--critic-save" in note


def test_settings_of_a_critic_that_is_not_there_are_said_to_be_idle() -> None:
    flags = "--critic-lr 1e-5 --lambd 0.9 --num-critic-only-steps 3"
    notes = [note for note in parsed(f"{LEAST} {flags}").notes if "no critic" in note]
    assert [note.partition(" ha")[0] for note in notes] == ["lambd, num_critic_only_steps, critic_lr"]
    own = "--custom-advantage-function-path a.b.c --lambd 0.9"
    assert not [note for note in parsed(f"{LEAST} {own}").notes if "no critic" in note]


def test_a_folder_that_gives_no_critic_is_found_before_anything_starts(tmp_path: Path) -> None:
    def problems() -> list[str]:
        settings = parsed(f"{PPO} --critic-load {tmp_path}").settings
        return [problem for problem in missing_paths(settings) if problem.startswith("critic_load")]

    (tmp_path / "trainer.json").touch()
    (problem,) = problems()
    assert str(tmp_path) in problem
    for name in ("critic", "config.json"):
        (tmp_path / name).mkdir()
        assert problems() == []
        (tmp_path / name).rmdir()
