"""A user's own functions in a rank: loss, advantages, correction, sum and hooks, against the built-in step."""

from __future__ import annotations

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from schemas.errors import PlugPointError
from tests.megatron.plain import chosen, every_log_prob
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]

OWN = """
import torch
from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, policy_loss_function

CALLS = []

def nll(args, batch, logits, sum_of_sample_mean):
    CALLS.append(("loss", tuple(logits.shape[:2]), len(batch["tokens"][0])))
    _, found = get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"], with_entropy=False)
    loss = -sum_of_sample_mean(torch.cat(found["log_probs"]))
    return loss, {"loss": loss.clone().detach(), "half": loss.detach() / 2}

def same_policy(args, batch, logits, sum_of_sample_mean):
    loss, metrics = policy_loss_function(args, batch, logits, sum_of_sample_mean)
    return loss, metrics

def no_gradient(args, batch, logits, sum_of_sample_mean):
    return torch.zeros(()), {}

def after_write(args, version_dir, rollout_engines):
    CALLS.append(("written", version_dir, torch.distributed.get_rank(), args.lr))

def calls_engines(args, version_dir, rollout_engines):
    for engine in rollout_engines:
        engine.flush_cache.remote()

def raises(args, batch, logits, sum_of_sample_mean):
    return 1 / 0

def half_advantages(args, rollout_data):
    CALLS.append(("advantages", sorted(rollout_data)))
    kinds = [torch.ones_like(mask, dtype=torch.float32) for mask in rollout_data["loss_masks"]]
    rewards = rollout_data["rewards"]
    rollout_data["advantages"] = [kind * reward / 2 for kind, reward in zip(kinds, rewards)]
    rollout_data["returns"] = rollout_data["advantages"]

def wrong_advantages(args, rollout_data):
    rollout_data["advantages"] = rollout_data["rewards"]

def mask_unlikely(args, rollout_id, rollout_data):
    CALLS.append(("data", rollout_id, sorted(rollout_data)))
    for mask, log_probs in zip(rollout_data["loss_masks"], rollout_data["log_probs"]):
        mask[log_probs < log_probs.median()] = 0
    for advantages in rollout_data["advantages"]:
        advantages *= 3
    rollout_data["mine"] = [float(mask.sum()) for mask in rollout_data["loss_masks"]]
    rollout_data["note"] = "for nobody"

def of_two(args, rollout_data):
    rollout_data["advantages"] = [one * 3 for one in rollout_data["advantages"]]

def another_length(args, rollout_id, rollout_data):
    rollout_data["advantages"][1] = torch.ones(1)

def another_prompt(args, rollout_id, rollout_data):
    rollout_data["tokens"][0][0] += 1

def numpy_masks(args, rollout_id, rollout_data):
    rollout_data["loss_masks"] = [mask.numpy() for mask in rollout_data["loss_masks"]]

def numpy_advantages(args, rollout_data):
    rollout_data["advantages"] = [mask.float().numpy() for mask in rollout_data["loss_masks"]]

def half_masks(args, rollout_id, rollout_data):
    rollout_data["loss_masks"] = [mask / 2 for mask in rollout_data["loss_masks"]]

def reads_mine(args, batch, logits, sum_of_sample_mean):
    assert batch["mine"] == [float(mask.sum()) for mask in batch["loss_masks"]]
    return policy_loss_function(args, batch, logits, sum_of_sample_mean)

def drop_first(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths, **kw):
    masks = [mask.clone() for mask in loss_masks]
    for mask in masks:
        mask[0] = 0
    return pg_loss * 2, masks, {"dropped": torch.ones_like(pg_loss)}

def one_third(total_lengths, response_lengths, loss_masks, calculate_per_token_loss):
    usual = get_sum_of_sample_mean(total_lengths, response_lengths, loss_masks, calculate_per_token_loss)
    return lambda pg_loss: usual(pg_loss) / 3

def init(args):
    CALLS.append(("init", args.lr))

def before_log_prob(args, model, store_prefix):
    CALLS.append(("log_prob", len(model), store_prefix))

def before_step(args, rollout_id, step_id, model, optimizer, opt_param_scheduler):
    CALLS.append(("step", rollout_id, step_id))
    assert optimizer.param_groups and opt_param_scheduler is not None
"""

LOADED = "user_trainer_functions_"
"""How the module of that file is called, and no other test's."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[str]:
    """Path of a file with a user's functions."""
    file = tmp_path / "trainer_functions.py"
    file.write_text(OWN)
    yield str(file)
    for name in [name for name in sys.modules if name.startswith(LOADED)]:
        del sys.modules[name]


def calls() -> list[Any]:
    (module,) = (module for name, module in sys.modules.items() if name.startswith(LOADED))
    recorded_calls: list[Any] = module.CALLS
    return recorded_calls


def weights(rank: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in rank.export_weights()}


def close(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor], atol: float = 1e-6) -> bool:
    return all(torch.allclose(tensor, other[name], atol=atol) for name, tensor in first.items())


def test_an_own_loss_is_minimised_and_named_with_its_digest(own: str, tiny: Path, trainer: Trainer) -> None:
    batch, steep = make_batch(), {"lr": 1e-2, "clip_grad": 0.0, "micro_batch_size": 3}
    algorithm = {
        "loss_type": "custom_loss",
        "custom_loss_function_path": f"{own}:nll",
        "compute_advantages_and_returns": False,
    }
    with trainer(tiny, algorithm, **steep) as rank:
        result, mine = rank.train(batch), weights(rank)
    assert {call[0] for call in calls()} == {"loss"}
    assert all(shape == (1, tokens) for _, shape, tokens in calls())
    supervised = {"loss_type": "sft_loss", "compute_advantages_and_returns": False}
    with trainer(tiny, supervised, **steep) as rank:
        theirs, ours = rank.train(batch), weights(rank)
    assert close(mine, ours)
    assert result.metrics["loss"] == pytest.approx(theirs.metrics["loss"], rel=1e-5)
    assert result.metrics["half"] == pytest.approx(result.metrics["loss"] / 2, rel=1e-5)
    digest = hashlib.sha256(Path(own).read_bytes() + b"\0nll").hexdigest()
    assert result.functions == {"custom_loss_function_path": digest}
    assert theirs.functions == {}


@pytest.mark.parametrize("per_token", [False, True])
def test_the_supervised_loss_equals_plain_torch(per_token: bool, tiny: Path, trainer: Trainer) -> None:
    batch = make_batch()
    algorithm = {
        "loss_type": "sft_loss",
        "compute_advantages_and_returns": False,
        "calculate_per_token_loss": per_token,
    }
    with trainer(tiny, algorithm, clip_grad=0.0, micro_batch_size=3) as rank:
        metrics = rank.train(batch).metrics
        gradient = rank.trainee.model.module.embedding.word_embeddings.weight.main_grad.clone()
    model = AutoModelForCausalLM.from_pretrained(tiny)
    total, trained = torch.zeros(()), 0
    for sample in batch.samples:
        mask = torch.from_numpy(sample.loss_mask).float()
        log_probs = chosen(every_log_prob(model, sample, 1.0), sample)
        total = total - (log_probs * mask).sum() / (1 if per_token else mask.sum())
        trained += int(mask.sum())
    loss = total / (trained if per_token else len(batch.samples))
    loss.backward()
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    torch.testing.assert_close(gradient, model.get_input_embeddings().weight.grad, atol=1e-6, rtol=1e-4)
    assert metrics["samples_passed"] == len(batch.samples)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_policy_loss_of_slime_s_name_is_the_built_in_one(
    steps: int, own: str, tiny: Path, trainer: Trainer
) -> None:
    batch, settings = make_batch(), {"num_steps_per_rollout": steps, "lr": 1e-2}
    algorithm = {"loss_type": "custom_loss", "custom_loss_function_path": f"{own}:same_policy"}
    with trainer(tiny, algorithm, **settings) as rank:
        mine, metrics = rank.train(batch).metrics, weights(rank)
    with trainer(tiny, {}, skip_zero_advantage=False, **settings) as rank:
        ours, theirs = rank.train(batch).metrics, weights(rank)
    assert close(metrics, theirs)
    assert mine["ppo_kl"] == pytest.approx(ours["ppo_kl"], abs=1e-6)
    assert (mine["ppo_kl"] != 0.0) == (steps == 2)


def test_own_advantages_take_the_place_of_the_estimator_s(own: str, tiny: Path, trainer: Trainer) -> None:
    batch = make_batch()
    algorithm = {"custom_advantage_function_path": f"{own}:half_advantages"}
    with trainer(tiny, algorithm, lr=1e-2) as rank:
        mine = rank.train(batch)
        moved = weights(rank)
    (_, seen), *_ = calls()
    assert {"rollout_log_probs", "log_probs", "loss_masks", "rewards", "kl", "total_lengths"} <= set(seen)
    halved = dataclasses.replace(
        batch, samples=tuple(dataclasses.replace(sample, reward=sample.reward / 2) for sample in batch.samples)
    )
    with trainer(tiny, {}, lr=1e-2) as rank:
        theirs = rank.train(halved)
        assert close(moved, weights(rank))
    assert mine.metrics["pg_loss"] == pytest.approx(theirs.metrics["pg_loss"], abs=1e-6)


def test_own_advantages_are_whitened_like_the_estimator_s(own: str, tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, {"normalize_advantages": True}) as rank:
        rank.train(make_batch())
        theirs = weights(rank)
    half = {"custom_advantage_function_path": f"{own}:half_advantages", "normalize_advantages": True}
    with trainer(tiny, half) as rank:
        rank.train(make_batch())
        assert close(weights(rank), theirs)


@pytest.mark.parametrize("steps", [1, 2])
def test_what_a_function_leaves_in_the_step_s_data_is_trained(
    steps: int, own: str, tiny: Path, trainer: Trainer
) -> None:
    """Tokens that it masks keep their place in the denominator, as in slime: the loss is that of fewer tokens."""
    batch, sizes = make_batch(step=5), {"num_steps_per_rollout": steps, "lr": 1e-2}
    with trainer(tiny, {"rollout_data_postprocess_path": f"{own}:mask_unlikely"}, **sizes) as rank:
        result, moved = rank.train(batch), weights(rank)
    ((kind, step, seen),) = calls()
    assert (kind, step) == ("data", 5)
    assert {"tokens", "log_probs", "advantages", "returns", "rewards", "rollout_mask_sums", "loss_masks"} <= set(seen)
    assert set(result.functions) == {"rollout_data_postprocess_path"}
    model = AutoModelForCausalLM.from_pretrained(tiny)
    samples = []
    for sample_ in batch.samples:
        log_probs = chosen(every_log_prob(model, sample_, 1.0), sample_).detach()
        mask = sample_.loss_mask * (log_probs >= log_probs.median()).numpy()
        share = float(mask.sum() / sample_.loss_mask.sum())  # of the denominator that is left
        samples.append(dataclasses.replace(sample_, loss_mask=mask.astype("int8"), reward=sample_.reward * 3 * share))
    assert result.metrics["trained_tokens"] == sum(int(sample.loss_mask.sum()) for sample in samples)
    with trainer(tiny, {}, **sizes) as rank:
        theirs = rank.train(dataclasses.replace(batch, samples=tuple(samples)))
        # Adam moves a weight with hardly any gradient by the rounding of it: some processors' 1e-5 of a step of 1e-2.
        assert close(moved, weights(rank), atol=1e-4)
    assert result.metrics["pg_loss"] == pytest.approx(theirs.metrics["pg_loss"], abs=1e-5)


def test_columns_of_the_batch_and_of_the_function_reach_an_own_loss(own: str, tiny: Path, trainer: Trainer) -> None:
    batch = make_batch()
    algorithm = {
        "loss_type": "custom_loss",
        "custom_loss_function_path": f"{own}:reads_mine",
        "rollout_data_postprocess_path": f"{own}:mask_unlikely",
    }
    with trainer(tiny, algorithm, micro_batch_size=3, lr=1e-2) as rank:
        rank.train(batch)
        mine = weights(rank)
    with trainer(tiny, {"rollout_data_postprocess_path": f"{own}:mask_unlikely"}, lr=1e-2) as rank:
        rank.train(batch)
        assert close(mine, weights(rank))
    sums = [float(sample.loss_mask.sum()) for sample in batch.samples]
    algorithm = {"loss_type": "custom_loss", "custom_loss_function_path": f"{own}:reads_mine"}
    with trainer(tiny, algorithm) as rank:
        rank.train(dataclasses.replace(batch, columns={"mine": sums}))


def test_a_function_of_two_arguments_is_called_without_the_step(own: str, tiny: Path, trainer: Trainer) -> None:
    losses = []
    for name in ("of_two", "mask_unlikely"):
        with trainer(tiny, {"rollout_data_postprocess_path": f"{own}:{name}"}, lr=0.0) as rank:
            losses.append(rank.train(make_batch()).metrics["pg_loss"])
    assert losses[0] != pytest.approx(losses[1])


@pytest.mark.parametrize("applies", [True, False])
def test_an_own_correction_weights_and_rejects_unless_it_only_measures(
    applies: bool, own: str, tiny: Path, trainer: Trainer
) -> None:
    """A rejected token keeps its place in the denominator: the loss is that of a doubled advantage without it."""
    batch = make_batch()
    algorithm = {
        "custom_tis_function_path": f"{own}:drop_first",
        "use_tis": applies,
        "get_mismatch_metrics": not applies,
    }
    with trainer(tiny, algorithm, lr=0.0) as rank:
        metrics = rank.train(batch).metrics
    assert metrics["dropped"] == pytest.approx(1.0)
    expected = 0.0
    for sample in batch.samples:
        kept = sample.loss_mask.sum() - (sample.loss_mask[0] if applies else 0)
        expected -= sample.reward * (2 if applies else 1) * kept / sample.loss_mask.sum() / len(batch.samples)
    assert metrics["pg_loss"] == pytest.approx(expected, abs=1e-6)
    assert ("mis_kl" in metrics) is not applies


def test_an_own_sum_of_the_policy_loss_leaves_other_terms_alone(own: str, tiny: Path, trainer: Trainer) -> None:
    metrics = {}
    for path in (None, f"{own}:one_third"):
        algorithm = {"custom_pg_loss_reducer_function_path": path, "entropy_coef": 0.1}
        with trainer(tiny, algorithm, lr=0.0, skip_zero_advantage=False) as rank:
            metrics[path] = rank.train(make_batch()).metrics
    usual, third = metrics.values()
    assert third["pg_loss"] == pytest.approx(usual["pg_loss"] / 3, abs=1e-6)
    assert third["loss"] - third["pg_loss"] == pytest.approx(usual["loss"] - usual["pg_loss"], abs=1e-6)


def test_hooks_are_called_where_slime_calls_them(own: str, tiny: Path, trainer: Trainer) -> None:
    hooks = {
        "custom_megatron_init_path": f"{own}:init",
        "custom_megatron_before_log_prob_hook_path": f"{own}:before_log_prob",
        "custom_megatron_before_train_step_hook_path": f"{own}:before_step",
    }
    algorithm = {"kl_coef": 0.1, "advantage_estimator": "reinforce_plus_plus", "normalize_advantages": True}
    with trainer(tiny, algorithm, num_steps_per_rollout=2, **hooks) as rank:
        digests = rank.train(make_batch(step=7)).functions
    assert calls() == [
        ("init", 1e-3),
        ("log_prob", 1, "ref_"),
        ("log_prob", 1, ""),
        ("step", 7, 0),
        ("step", 7, 1),
    ]
    assert len(digests) == 3


def test_written_weights_are_shown_and_have_no_part_in_a_step(own: str, tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, custom_update_weight_post_write_path=f"{own}:after_write") as rank:
        assert set(rank.show_weights("/weights/v1")) == {"custom_update_weight_post_write_path"}
        assert rank.train(make_batch()).functions == {}
    assert calls() == [("written", "/weights/v1", 0, 1e-3)]
    with (
        trainer(tiny, custom_update_weight_post_write_path=f"{own}:calls_engines") as rank,
        pytest.raises(PlugPointError, match="rollout_engines"),
    ):
        rank.show_weights("/weights/v1")


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"loss_type": "custom_loss", "custom_loss_function_path": "no_gradient"}, "no_gradient"),
        ({"loss_type": "custom_loss", "custom_loss_function_path": "raises"}, "ZeroDivisionError"),
        ({"custom_advantage_function_path": "wrong_advantages"}, "wrong_advantages"),
        ({"custom_tis_function_path": "init", "use_tis": True}, "init"),
        ({"custom_pg_loss_reducer_function_path": "before_log_prob"}, "before_log_prob"),
        ({"rollout_data_postprocess_path": "another_length"}, "another_length.*'advantages'"),
        ({"rollout_data_postprocess_path": "another_prompt"}, "another_prompt.*'(unconcat_)?tokens'"),
        ({"rollout_data_postprocess_path": "half_masks"}, "half_masks.*'loss_masks'"),
        ({"rollout_data_postprocess_path": "numpy_masks"}, "numpy_masks.*'loss_masks'"),
        ({"custom_advantage_function_path": "numpy_advantages"}, "numpy_advantages.*'advantages'"),
    ],
)
def test_what_a_function_gives_is_checked(
    algorithm: dict[str, Any], message: str, own: str, tiny: Path, trainer: Trainer
) -> None:
    paths = {name: f"{own}:{value}" if name.endswith("path") else value for name, value in algorithm.items()}
    with trainer(tiny, paths) as rank, pytest.raises(PlugPointError, match=f"(?s){message}"):
        rank.train(make_batch())


def test_entropy_before_the_update_is_that_of_all_samples(tiny: Path, trainer: Trainer) -> None:
    batch = make_batch(zero=True)  # half of the samples need no pass
    with trainer(tiny, {"use_rollout_entropy": True}) as rank:
        measured, moved = rank.train(batch).metrics["rollout_entropy"], weights(rank)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    means = []
    for sample in batch.samples:
        every, mask = every_log_prob(model, sample, 1.0), torch.from_numpy(sample.loss_mask).float()
        means.append(((-(every.exp() * every).sum(-1)) * mask).sum().item() / mask.sum().item())
    assert measured == pytest.approx(sum(means) / len(means), abs=1e-5)
    with trainer(tiny) as rank:
        rank.train(batch)
        assert all(torch.equal(tensor, moved[name]) for name, tensor in weights(rank).items()), "it only measures"
