"""Flags of the trainer that are slime's or Megatron's: what each of them changes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from actors.megatron import frozen, trainee
from actors.megatron.attention import PackedSequences
from actors.megatron.families.registry import read_architecture
from actors.megatron.forward import pack, response_log_probs, response_outputs
from actors.megatron.rank import TrainerRank
from actors.megatron.weights import digest_tensors
from actors.step.data_split import forward_flops, packing_rule
from actors.step.log_probs import LogitMemory
from schemas.errors import CheckpointMismatch, InvalidValue
from slime_events.algorithms.packing import PackingRule, micro_batches
from slime_events.core.config.trainer import TrainerSettings
from storage.digests import weights_digest
from storage.weights.store import WeightStore
from tests.megatron.gradients import gradients_of
from tests.megatron.recomputing import FULL, recomputing
from tests.megatron.tiny import VOCAB, make_batch

Trainer = Callable[..., Any]


def tensors(rank: TrainerRank) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in rank.export_weights()}


def digest(rank: TrainerRank) -> str:
    return weights_digest(digest_tensors(rank.export_weights()))


@pytest.mark.parametrize(
    ("lists", "trained"),
    [
        ({"only_train_params_name_list": [r"layers\.1\.mlp"]}, "layers.1.mlp"),
        ({"freeze_params_name_list": ["embedding", "norm", r"layers\.0", "self_attention"]}, "layers.1.mlp"),
        ({"only_train_params_name_list": [r"\.mlp\."], "freeze_params_name_list": [r"layers\.0"]}, "layers.1.mlp"),
    ],
)
def test_only_named_parameters_are_trained(
    lists: dict[str, list[str]],
    trained: str,
    tiny: Path,
    tmp_path: Path,
    trainer: Trainer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, frozen.__name__)
    with trainer(tiny, **lists) as rank:
        before = tensors(rank)
        every = list(rank.trainee.model.parameters())
        counts = sum(each.numel() for each in every if each.requires_grad), sum(each.numel() for each in every)
        assert [record.args[:2] for record in caplog.records if record.name == frozen.__name__] == [counts]
        rank.train(make_batch(0))
        after = tensors(rank)
        rank.save_checkpoint(tmp_path / "c")
        rank.train(make_batch(1))
        later = digest(rank)
    moved = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert moved == {name for name in before if trained in name and "norm" not in name}
    with trainer(tiny, load=str(tmp_path / "c"), **lists) as rank:
        rank.train(make_batch(1))
        assert digest(rank) == later


@pytest.mark.parametrize("lists", [{"freeze_params_name_list": ["."]}, {"only_train_params_name_list": ["mlp", "moe"]}])
def test_lists_that_leave_nothing_or_name_nothing_are_refused(
    lists: dict[str, list[str]], tiny: Path, trainer: Trainer
) -> None:
    with pytest.raises(InvalidValue, match="params-name-list"), trainer(tiny, **lists):
        pass


def test_layers_that_are_recomputed_learn_with_a_frozen_embedding(tiny: Path, trainer: Trainer) -> None:
    gradients = []
    for flags in ({}, FULL):
        with recomputing(), trainer(tiny, freeze_params_name_list=["embedding"], megatron=flags) as rank:
            assert rank.trainee.model.config.recompute_granularity == flags.get("recompute_granularity")
            rank.train(make_batch())
            gradients.append(gradients_of(rank))
    plain, recomputed = gradients
    assert plain.keys() == recomputed.keys()
    assert all(gradient.any() for gradient in recomputed.values())
    for name, gradient in plain.items():
        torch.testing.assert_close(recomputed[name], gradient, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize("bf16", [False, True])
def test_a_checkpoint_without_its_optimizer_gives_its_weights(
    bf16: bool, tiny: Path, tmp_path: Path, trainer: Trainer
) -> None:
    folder = tmp_path / "c"
    with trainer(tiny, bf16=bf16) as rank:
        new = rank.optimizer_digest()
        rank.train(make_batch(0))
        saved = digest(rank)
        rank.save_checkpoint(folder)
        WeightStore(str(tmp_path / "hf"), base=tiny, durable=False).write(1, rank.export_bytes(), 0)
    with trainer(tiny, bf16=bf16, load=WeightStore(str(tmp_path / "hf")).folder(1)) as rank:
        rank.train(make_batch(1))
        expected = digest(rank)
    with trainer(tiny, bf16=bf16, load=str(folder), load_optim=False) as rank:
        assert digest(rank) == saved
        assert rank.trainee.scheduler.num_steps == 0
        moments = rank.trainee.optimizer.chained_optimizers[0].optimizer.state.values()
        assert all(not state["exp_avg"].any() for state in moments)
        assert bf16 or rank.optimizer_digest() == new
        rank.train(make_batch(1))
        assert digest(rank) == expected
    with trainer(tiny, bf16=bf16, load=str(folder)) as rank:
        assert rank.optimizer_digest() != new


def test_each_rollout_step_may_begin_without_moments(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    """Train a second step like a new trainer with the same weights."""
    folder = tmp_path / "c"
    with trainer(tiny, reset_optimizer_states=True) as rank:
        rank.train(make_batch(0))
        rank.save_checkpoint(folder)
        again = rank.train(make_batch(1))
        forgetful = digest(rank)
    with trainer(tiny, load=str(folder), load_optim=False) as rank:
        fresh = rank.train(make_batch(1))
        assert digest(rank) == forgetful
        assert fresh.optimizer_digest == again.optimizer_digest
    with trainer(tiny, load=str(folder)) as rank:
        rank.train(make_batch(1))
        assert digest(rank) != forgetful


def kept(rank: TrainerRank, **saving: Any) -> tuple[int, int, list[torch.Tensor]]:
    """Bytes kept for the backward pass by float32 arrays of logits; their rows in one; log-probs, entropies and the
    gradient of the embedding."""
    sizes: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            sizes.append(tensor)
        return tensor

    group, model = rank.place.tensor, rank.trainee.model
    model.zero_grad_buffer()
    packed = rank.trainee.pack(make_batch(0).samples, range(8))
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        parts = response_log_probs(model, packed, 0.9, group, entropy_gradient=True, memory=LogitMemory(**saving))
    flat = [torch.cat(part) for part in parts]
    (flat[0].sum() + flat[1].sum()).backward()
    logits = [tensor for tensor in sizes if tensor.dim() == 2 and tensor.size(-1) == VOCAB]
    gradient = next(model.parameters()).main_grad.clone()
    rows = max((tensor.size(0) for tensor in logits), default=0)
    return sum(tensor.nbytes for tensor in logits), rows, [*(tensor.detach() for tensor in flat), gradient]


def test_the_loss_may_be_computed_again_and_in_chunks(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny) as rank:
        all_bytes, all_rows, whole = kept(rank)
        fewer_bytes, _, again = kept(rank, recompute=True)
        chunked_bytes, _, chunked = kept(rank, chunk=7)
        _, large_rows, large = kept(rank, chunk=10_000)
    assert all(torch.equal(tensor, other) for tensor, other in zip(whole, again, strict=True))
    assert all(torch.allclose(tensor, other, atol=1e-5) for tensor, other in zip(whole, chunked, strict=True))
    assert all(torch.equal(tensor, other) for tensor, other in zip(whole, large, strict=True))
    assert large_rows == all_rows
    assert fewer_bytes <= all_bytes / 2
    assert chunked_bytes == 0, "no logits outlive their chunk"


def test_settings_of_memory_reach_the_loss(tiny: Path, trainer: Trainer) -> None:
    """Compute the same step, to rounding, whatever memory is saved."""
    figures = []
    for saving in ({}, {"log_probs_chunk_size": 5}, {"recompute_loss_function": True}):
        with trainer(tiny, {"entropy_coef": 0.01}, **saving) as rank:
            metrics = rank.train(make_batch(0)).metrics
            figures.append((metrics["loss"], metrics["grad_norm"]))
    assert figures[1] == pytest.approx(figures[0], rel=1e-4)
    assert figures[2] == figures[0]


def test_scoring_packs_by_its_own_limit(tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 400, "log_probs_max_tokens_per_gpu": 40}
    samples, packed = make_batch(0).samples, list[int]()

    def noted(members: Any, *args: Any, **named: Any) -> Any:
        packed.append(sum(sample.total_length for sample in members))
        return pack(members, *args, **named)

    monkeypatch.setattr(trainee, "pack", noted)
    with trainer(tiny, **limits) as rank:
        (trained,) = rank.trainee.split(samples, range(len(samples)))
        rank.trainee.scores_of(rank.trainee.model, samples, range(len(samples)), 1.0)
    assert max(sum(samples[index].total_length for index in members) for members in trained) > 40 >= max(packed)
    rule = packing_rule(TrainerSettings(**limits), read_architecture(tiny), 1, cpu=False, scoring=True)
    assert rule.max_tokens == 40


def test_work_grows_faster_than_length(tiny: Path) -> None:
    architecture = read_architecture(tiny)
    assert forward_flops(architecture, 2000) > 2 * forward_flops(architecture, 1000)
    # By hand: 2 layers; queries 4 x 16, keys 2 x 16; per token and layer 32 x (2 x 64 + 2 x 32 + 3 x 48) + 64 x 10.
    assert forward_flops(architecture, 10) == 2 * 10 * (2 * (32 * (128 + 64 + 144) + 64 * 10) + 32 * 64)


def test_micro_batches_of_equal_work() -> None:
    """One long sample weighs as much as many short ones of as many tokens do not."""
    lengths = [80, 10, 10, 10, 10, 10, 10, 10, 10]
    work = [length**2 for length in lengths]
    rule = PackingRule(max_tokens=100, ranks=2, balance=True)
    by_tokens, by_work = micro_batches(lengths, rule), micro_batches(lengths, rule, work)
    assert sorted(index for rank in by_work for members in rank for index in members) == list(range(9))
    assert [len(members) for rank in by_work for members in rank] == [1, 8]
    heaviest = [max(sum(work[i] for b in rank for i in b) for rank in dealt) for dealt in (by_work, by_tokens)]
    assert heaviest[0] < heaviest[1]
    assert micro_batches([], rule, []) == micro_batches([], rule)


def test_schedules_over_the_run(tiny: Path, trainer: Trainer) -> None:
    rising = {"start_weight_decay": 0.0, "end_weight_decay": 0.1, "weight_decay_incr_style": "linear"}
    with trainer(tiny, lr_warmup_fraction=0.5, lr_decay_iters=4, megatron=rising) as rank:
        rates, decays = [], []
        for step in range(4):
            decays.append(rank.trainee.optimizer.param_groups[0]["weight_decay"])
            rates.append(rank.train(make_batch(step)).metrics["lr"])
    assert rates == pytest.approx([0.0, 0.5e-3, 1e-3, 1e-3])
    assert decays == pytest.approx([0.0, 0.025, 0.05, 0.075])
    with (
        pytest.raises(InvalidValue, match="weight-decay-incr-style"),
        trainer(tiny, megatron={"start_weight_decay": 0.0, "end_weight_decay": 0.1}),
    ):
        pass


def test_a_padded_vocabulary_is_the_checkpoints_or_none(tiny: Path, trainer: Trainer) -> None:
    with trainer(tiny, megatron={"padded_vocab_size": VOCAB}):
        pass
    with (
        pytest.raises(CheckpointMismatch, match="padded-vocab-size"),
        trainer(tiny, megatron={"padded_vocab_size": 65}),
    ):
        pass


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_chunks_are_as_near_to_float64_as_all_rows_at_once(
    kind: torch.dtype, temperature: float, tiny: Path, trainer: Trainer
) -> None:
    """Log-probs and entropies of logits in the model's dtype, tempered in float32."""
    samples = make_batch(0).samples
    with trainer(tiny, bf16=kind is torch.bfloat16) as rank:
        model, group, packed = rank.trainee.model, rank.place.tensor, rank.trainee.pack(samples, range(8))
        with torch.no_grad():
            logits = response_outputs(model, packed).to(kind).double() / temperature
            logs = logits.log_softmax(-1)
            expected = logs.gather(-1, packed.targets.unsqueeze(-1)).squeeze(-1), -(logs.exp() * logs).sum(-1)
            for chunk in (-1, 3, 7):
                log_probs = response_log_probs(model, packed, temperature, group, memory=LogitMemory(chunk))
                for mine, exact in zip(log_probs, expected, strict=True):
                    assert torch.cat(mine).dtype is torch.float32
                    assert torch.allclose(
                        torch.cat(mine).double(), exact, atol=2e-2 if kind is torch.bfloat16 else 1e-5
                    )


def test_a_model_of_ones_own_that_gives_logits_is_taken_as_it_is(tiny: Path, trainer: Trainer) -> None:
    packed_rows: list[int] = []

    class Own(torch.nn.Module):
        def forward(self, *args: Any, packed_seq_params: PackedSequences) -> torch.Tensor:
            packed_rows.append(len(args[0][0]))
            return torch.zeros(1, len(args[0][0]), VOCAB)

    with trainer(tiny) as rank:
        packed = rank.trainee.pack(make_batch(0).samples, range(8))
        log_probs, _ = response_log_probs(Own(), packed, 1.0, rank.place.tensor, memory=LogitMemory(7))
    assert packed_rows
    assert torch.allclose(torch.cat(log_probs), torch.full((len(packed.targets),), -math.log(VOCAB)))
