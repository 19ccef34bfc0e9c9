"""One rank trains: determinism, resuming, skipping, old log-probs, reference, bad samples."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.megatron.checkpoint import is_checkpoint
from actors.megatron.optimizer import ensure_state
from actors.megatron.rank import TrainerRank
from actors.megatron.weights import digest_tensors
from schemas.errors import CheckpointMismatch, ImpossibleCombination, InvalidValue, TrainerError
from slime_events.core.training.train_batch import TrainBatch
from storage.digests import weights_digest
from storage.weights.store import WeightStore
from tests.megatron.tiny import make_batch, make_model, settings_for

Trainer = Callable[..., Any]


def weights(rank: TrainerRank) -> str:
    return weights_digest(digest_tensors(rank.export_weights()))


def test_the_same_batches_give_the_same_bytes(tiny: Path, trainer: Trainer) -> None:
    runs = []
    for _ in range(2):
        with trainer(tiny) as rank:
            before = weights(rank)
            results = [rank.train(make_batch(step)) for step in range(3)]
            assert weights(rank) != before
            runs.append((weights(rank), [result.optimizer_digest for result in results]))
    assert runs[0] == runs[1]
    assert len(set(runs[0][1])) == 3


def test_all_groups_share_one_gloo_device(tiny: Path, trainer: Trainer) -> None:
    before = _gloo_devices()
    with trainer(tiny):
        assert _gloo_devices() <= max(before, 1)


def _gloo_devices() -> int:
    """Each has a thread of this name."""
    return [path.read_text() for path in Path("/proc/self/task").glob("*/comm")].count("gloo_tcp_loop\n")


@pytest.mark.parametrize("saved_after", [0, 2])
@pytest.mark.parametrize("kind", [{}, {"bf16": True}, {"optimizer": "sgd"}], ids=["adam", "bf16", "sgd"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    saved_after: int, kind: dict[str, Any], tiny: Path, tmp_path: Path, trainer: Trainer
) -> None:
    schedule = {"lr_warmup_iters": 1, "lr_decay_style": "cosine", "lr_decay_iters": 10, **kind}
    folder = tmp_path / "checkpoint"
    with trainer(tiny, **schedule) as rank:
        for step in range(saved_after):
            rank.train(make_batch(step))
        rank.save_checkpoint(folder)
        through = [rank.train(make_batch(step)) for step in (2, 3)]
        expected = weights(rank)
    assert is_checkpoint(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
    with trainer(tiny, load=str(folder), **schedule) as rank:
        resumed = [rank.train(make_batch(step)) for step in (2, 3)]
        assert weights(rank) == expected
    assert [result.optimizer_digest for result in resumed] == [result.optimizer_digest for result in through]
    assert [result.metrics["lr"] for result in resumed] == [result.metrics["lr"] for result in through]


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
def test_a_rank_that_begins_anew_holds_one_model(
    family: str, tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one is gone before the new one is built: both would have to fit on a device."""
    alive: list[bool] = []
    build = TrainerRank._begin
    make_model(tmp_path, family, tied=False)
    with trainer(tmp_path, {"advantage_estimator": "ppo"}) as rank:
        rank.train(make_batch())
        critic = rank.trainee.critic
        assert critic is not None
        parts = rank.trainee.model, rank.trainee.optimizer, next(rank.trainee.model.parameters()), critic.model
        old = [weakref.ref(part) for part in parts]
        del parts, critic

        def begin(self: TrainerRank) -> None:
            alive.extend(ref() is not None for ref in old)
            build(self)

        monkeypatch.setattr(TrainerRank, "_begin", begin)
        rank.reset()
        assert rank.train(make_batch()).optimizer_digest
    assert alive == [False] * 4


def test_torch_s_optimizers_are_fused_on_a_gpu_too(
    tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And have their state from the start, on the device of their parameters."""
    monkeypatch.setattr("actors.megatron.optimizer.on_cpu", lambda: False)
    with trainer(tiny) as rank:
        inner = rank.trainee.optimizer.optimizer
        assert {group["fused"] for group in inner.param_groups} == {True}
        assert len(inner.state) == len(list(rank.trainee.model.parameters()))
    parameter = torch.nn.Parameter(torch.zeros(2, device="meta"))
    inner = torch.optim.AdamW([parameter])
    ensure_state(inner, settings_for(tiny))
    assert {value.device.type for value in inner.state[parameter].values()} == {"meta"}


def test_the_optimizer_is_hashed_as_often_as_is_wanted(tiny: Path, trainer: Trainer) -> None:
    for mode, hashed in (("every", [True, True]), ("checkpoint", [False, True]), ("off", [False, False])):
        with trainer(tiny, optimizer_digest=mode, save_interval=2, deterministic_mode=True) as rank:
            digests = [rank.train(make_batch(step)).optimizer_digest for step in range(2)]
            assert [bool(digest) for digest in digests] == hashed
            assert digests[1] in ("", rank.optimizer_digest())


@pytest.mark.parametrize("bf16", [False, True])
def test_main_weights_follow_the_weights_that_are_loaded(
    bf16: bool, tiny: Path, tmp_path: Path, trainer: Trainer
) -> None:
    store, dtype = WeightStore(str(tmp_path), durable=False), torch.bfloat16 if bf16 else torch.float32
    with trainer(tiny, bf16=bf16) as rank:
        rank.train(make_batch(0))
        committed = store.write(1, rank.export_bytes(), 0)
        (optimizer,) = rank.trainee.optimizer.chained_optimizers
        mains = [main for group in optimizer.optimizer.param_groups for main in group["params"]]
        before = [main.detach().clone().view(-1) for main in mains]
        assert (sum(int((main.to(dtype) != main).sum()) for main in before) > 0) is bf16, "updates below the weights"
        with torch.no_grad():
            for main in mains:
                main.view(-1)[0] += 0.5
        if bf16:
            optimizer._copy_main_params_to_model_params()
        assert weights(rank) != committed.digest
        rank.load_weights(store.folder(1))
        assert weights(rank) == committed.digest
        for main, was in zip(mains, before, strict=True):
            assert torch.equal(main.view(-1)[1:], was[1:]), "what rounds to the weight keeps its lower bits"
            assert main.view(-1)[0] == was[0].to(dtype)
        rank.train(make_batch(1))
        assert weights(rank) != committed.digest


def test_a_schedule_goes_on_where_steps_were_not_trained_again(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    """The newest weights, the moments of a checkpoint, and the learning rate of the next step."""
    schedule = {"lr_warmup_iters": 1, "lr_decay_style": "cosine", "lr_decay_iters": 10}
    store = WeightStore(str(tmp_path / "weights"), durable=False)
    with trainer(tiny, **schedule) as rank:
        rank.train(make_batch(0))
        rank.save_checkpoint(tmp_path / "v1")
        moments = rank.optimizer_digest()
        steps = sum(rank.train(make_batch(step)).metrics["optimizer_steps"] for step in (1, 2))
        newest = store.write(3, rank.export_bytes(), 2).digest
        through = rank.train(make_batch(3)).metrics["lr"]
        rank.load_checkpoint(tmp_path / "v1")
        rank.load_weights(store.folder(3))
        assert (weights(rank), rank.optimizer_digest()) == (newest, moments)
        behind = rank.trainee.optimizer.param_groups[0]["lr"]
        rank.advance_schedule(int(steps))
        assert rank.train(make_batch(3)).metrics["lr"] == through != behind


def test_other_settings_hold_from_a_checkpoint_on(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    before = {"lr": 1e-3, "lr_warmup_iters": 4, "weight_decay": 0.0}
    with trainer(tiny, **before) as rank:
        for step in range(2):
            rank.train(make_batch(step))
        rank.save_checkpoint(tmp_path / "a")
    rates, weights_after = {}, {}
    for name, after in {
        "same": {},
        "faster": {"lr": 4e-3},
        "beta": {"adam_beta1": 0.5},
        "wd": {"weight_decay": 0.1},
    }.items():
        with trainer(tiny, **before | after) as rank:
            rank.load_checkpoint(tmp_path / "a")
            rates[name] = rank.train(make_batch(2)).metrics["lr"]
            weights_after[name] = weights(rank)
    assert rates == {"same": 5e-4, "faster": 2e-3, "beta": 5e-4, "wd": 5e-4}, "half of the warm-up is over"
    assert len(set(weights_after.values())) == 4


def test_checkpoints_are_never_overwritten_and_must_fit(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    with trainer(tiny) as rank:
        rank.save_checkpoint(tmp_path / "a")
        with pytest.raises(TrainerError, match="exists already"):
            rank.save_checkpoint(tmp_path / "a")
        with pytest.raises(CheckpointMismatch, match="not a complete trainer checkpoint"):
            rank.load_checkpoint(tmp_path)
    make_model(tmp_path / "wider", intermediate_size=64)
    with trainer(tmp_path / "wider") as rank, pytest.raises(CheckpointMismatch, match="does not fit"):
        rank.load_checkpoint(tmp_path / "a")


@pytest.mark.parametrize("per_token", [False, True])
def test_skipping_zero_advantages_changes_no_gradient(per_token: bool, tiny: Path, trainer: Trainer) -> None:
    norms, gradients, passed = [], [], []
    batch = make_batch(zero=True)
    for skip in (True, False):
        algorithm = {"calculate_per_token_loss": per_token}
        with trainer(tiny, algorithm, skip_zero_advantage=skip, clip_grad=0.0) as rank:
            result = rank.train(batch)
            norms.append(result.metrics["grad_norm"])
            passed.append(result.metrics["samples_passed"])
            gradients.append(torch.cat([p.main_grad.flatten() for p in rank.trainee.model.parameters()]))
    assert passed == [8, 16]
    assert norms[0] == pytest.approx(norms[1], abs=1e-6)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-7, rtol=1e-5)


def test_a_kl_or_entropy_term_needs_every_sample(tiny: Path, trainer: Trainer) -> None:
    for algorithm in ({"entropy_coef": 0.01}, {"use_kl_loss": True, "kl_loss_coef": 0.1}):
        with trainer(tiny, algorithm) as rank:
            assert rank.train(make_batch(zero=True)).metrics["samples_passed"] == 16


def test_a_step_without_any_signal_still_steps(tiny: Path, trainer: Trainer) -> None:
    batch = make_batch()
    silent = tuple(dataclasses.replace(sample, reward=0.0) for sample in batch.samples)
    with trainer(tiny) as rank:
        result = rank.train(TrainBatch(step=0, samples=silent))
    assert result.metrics["samples_passed"] == 0
    assert result.metrics["grad_norm"] == 0.0
    assert result.metrics["loss"] == 0.0


def test_a_reference_model_stays_where_it_was(tiny: Path, trainer: Trainer) -> None:
    algorithm = {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl", "entropy_coef": 0.001}
    with trainer(tiny, algorithm, lr=1e-2) as rank:
        first, second = (rank.train(make_batch(step)).metrics for step in range(2))
    assert first["kl_loss"] == pytest.approx(0.0, abs=1e-6)
    assert second["kl_loss"] > 1e-4
    assert first["entropy"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss_mask": np.ones(1000, np.int8)}, "1000 loss mask entries"),
        ({"rollout_log_probs": np.zeros(1, np.float32)}, "1 rollout log-probs"),
        ({"response_length": 0}, "at least 1 each"),
        ({"reward": float("nan")}, "reward nan"),
    ],
)
def test_a_sample_that_cannot_be_trained_on_is_named(
    change: dict[str, Any], message: str, tiny: Path, trainer: Trainer
) -> None:
    batch = make_batch()
    bad = dataclasses.replace(batch.samples[3], **change)
    with trainer(tiny) as rank, pytest.raises(TrainerError, match=message) as caught:
        rank.train(TrainBatch(step=0, samples=(*batch.samples[:3], bad)))
    assert "sample 0-0-3 of group 0-0" in str(caught.value)


def test_the_flags_of_slimes_scripts_train(tiny: Path, trainer: Trainer) -> None:
    model = {"num_layers": 2, "hidden_size": 32, "swiglu": True, "qk_layernorm": True, "rotary_base": 1000000}
    perf = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    other = {"attention_backend": "flash", "attention_dropout": 0.0, "accumulate_allreduce_grads_in_fp32": True}
    settings = {"sequence_parallel": True, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 64, "optimizer": "sgd"}
    with trainer(tiny, megatron={**model, **perf, **other}, **settings) as rank:
        assert rank.train(make_batch()).metrics["grad_norm"] > 0
    with pytest.raises(CheckpointMismatch, match="--num-layers 3"), trainer(tiny, megatron={"num_layers": 3}):
        pass


def test_settings_that_cannot_be_are_refused(tiny: Path, trainer: Trainer) -> None:
    with (
        pytest.raises(ImpossibleCombination, match="pipeline-model-parallel-size"),
        trainer(tiny, pipeline_model_parallel_size=3),
    ):
        pass
    with pytest.raises(InvalidValue, match="lr-decay-iters"), trainer(tiny, lr_decay_style="cosine"):
        pass


@pytest.mark.parametrize("algorithm", [{}, {"use_kl_loss": True, "kl_loss_coef": 0.1}])
def test_a_dump_of_what_was_trained_on(algorithm: dict[str, Any], tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    batch, path = make_batch(3, zero=True), f"{tmp_path}/new/3.pt"
    with trainer(tiny, algorithm) as rank:
        result = rank.train(batch, path)
    pack = torch.load(path, weights_only=True)
    assert (pack["rollout_id"], pack["raw_reward"]) == (3, [sample.raw_reward for sample in batch.samples])
    passed = [sample_ for sample_ in pack["samples"] if "log_probs" in sample_]
    assert len(passed) == result.metrics["samples_passed"]
    (shard,) = pack["dp_shards"]
    trained = {shard["partition"][place] for members in shard["micro_batch_indices"] for place in members}
    assert trained == {sample_["sample_index"] for sample_ in passed}
    assert all(
        ("ref_log_probs" in sample_) == bool(algorithm and "log_probs" in sample_) for sample_ in pack["samples"]
    )
    for dumped, sample in zip(pack["samples"], batch.samples, strict=True):
        assert dumped["tokens"].tolist() == sample.tokens.tolist()
        assert dumped["loss_masks"].tolist() == sample.loss_mask.tolist()
        assert dumped["advantages"].tolist() == pytest.approx([sample.reward] * sample.response_length)
    apart = [
        (sample_["log_probs"] - sample_["rollout_log_probs"]).abs()[sample_["loss_masks"] != 0].max().item()
        for sample_ in passed
    ]
    assert max(apart) == pytest.approx(result.metrics["logprob_agreement_max"])
