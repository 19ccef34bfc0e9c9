"""On-policy distillation in a rank: the teacher's log-probs, advantages against float64 written apart, the figures."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from actors.megatron.families.vocabulary import check_vocabulary
from schemas.errors import CheckpointMismatch, TrainerError
from slime_events.core.training.train_batch import TrainBatch
from storage.weights.stored_version import digest_of
from tests.megatron.plain import log_probs_of
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]
TEMPERATURE, COEF = 0.7, 0.3


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a teacher of another size than the student, and of another family."""
    folder = tmp_path_factory.mktemp("teacher")
    make_model(folder, "llama", tied=False, seed=3, hidden_size=48, num_hidden_layers=3)
    return folder


def expected(batch: TrainBatch, student: list[Tensor], teacher: list[Tensor], *, whiten: bool) -> list[Tensor]:
    """GRPO's advantages less the reverse KL, in float64: A - coef * (log p_student - log p_teacher)."""
    rows = [
        torch.full((sample.response_length,), sample.reward, dtype=torch.float64) - COEF * (mine - theirs)
        for sample, mine, theirs in zip(batch.samples, student, teacher, strict=True)
    ]
    if not whiten:
        return rows
    trained = torch.cat(
        [row[torch.from_numpy(sample.loss_mask) != 0] for row, sample in zip(rows, batch.samples, strict=True)]
    )
    return [(row - trained.mean()) / (trained.var(unbiased=True) + 1e-8).sqrt() for row in rows]


def log_probs(folder: Path, batch: TrainBatch) -> list[Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    return [log_probs_of(model, sample, batch.temperature).detach() for sample in batch.samples]


@pytest.mark.parametrize(("whiten", "rollout_log_probs"), [(False, False), (True, False), (False, True)])
def test_advantages_are_held_to_the_teacher(
    whiten: bool, rollout_log_probs: bool, tiny: Path, teacher: Path, tmp_path: Path, trainer: Trainer
) -> None:
    algorithm = {"use_opd": True, "opd_type": "megatron", "opd_kl_coef": COEF, "normalize_advantages": whiten}
    batch, path = dataclasses.replace(make_batch(), temperature=TEMPERATURE), f"{tmp_path}/0.pt"
    algorithm |= {"use_rollout_logprobs": rollout_log_probs}
    with trainer(tiny, algorithm, opd_teacher_load=str(teacher)) as rank:
        result = rank.train(batch, path)
    theirs = log_probs(teacher, batch)
    engine = [torch.from_numpy(sample.rollout_log_probs).double() for sample in batch.samples]
    student = engine if rollout_log_probs else log_probs(tiny, batch)
    means = []
    advantages = expected(batch, student, theirs, whiten=whiten)
    for index, dumped in enumerate(torch.load(path, weights_only=True)["samples"]):
        mask = torch.from_numpy(batch.samples[index].loss_mask) != 0
        torch.testing.assert_close(dumped["teacher_log_probs"].double(), theirs[index], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(dumped["advantages"].double()[mask], advantages[index][mask], atol=2e-5, rtol=1e-5)
        means.append((student[index] - theirs[index])[mask].mean())
    assert result.metrics["opd_reverse_kl"] == pytest.approx(torch.stack(means).mean().item(), abs=1e-5)


def test_recorded_log_probs_are_a_teacher_too(tiny: Path, teacher: Path, trainer: Trainer) -> None:
    """Get the same weights from the numbers of a grader's event, up to rounding of the two ways."""
    batch = make_batch()
    teacher_log_probs = log_probs(teacher, batch)
    samples = [
        dataclasses.replace(sample, teacher_log_probs=row.float().numpy())
        for sample, row in zip(batch.samples, teacher_log_probs, strict=True)
    ]
    sglang = {"use_opd": True, "opd_type": "sglang", "opd_kl_coef": COEF}
    with trainer(tiny, sglang) as rank:
        result = rank.train(dataclasses.replace(batch, samples=tuple(samples)))
        recorded = rank.trainee.model.module.embedding.word_embeddings.weight.main_grad.clone()
        assert result.models == {}
        lacking = (*samples[:3], batch.samples[3], *samples[4:])
        with pytest.raises(TrainerError, match=batch.samples[3].sample):
            rank.train(dataclasses.replace(batch, samples=lacking))
    with trainer(tiny, sglang | {"opd_type": "megatron"}, opd_teacher_load=str(teacher)) as rank:
        metrics = rank.train(batch).metrics
        held = rank.trainee.model.module.embedding.word_embeddings.weight.main_grad
        torch.testing.assert_close(recorded, held, atol=1e-6, rtol=1e-4)
    assert result.metrics["opd_reverse_kl"] == pytest.approx(metrics["opd_reverse_kl"], abs=1e-5)


def test_the_digest_of_a_frozen_model_is_that_of_its_weights(tiny: Path, teacher: Path, trainer: Trainer) -> None:
    algorithm = {"use_opd": True, "opd_type": "megatron", "use_kl_loss": True}
    with trainer(tiny, algorithm, opd_teacher_load=str(teacher)) as rank:
        begun = digest_of(rank.export_bytes())
        first, second = rank.train(make_batch()).models, rank.train(make_batch(1)).models
    with trainer(teacher) as rank:
        own = digest_of(rank.export_bytes())
    assert first == second == {"reference": begun, "teacher": own}


def tokenizer(folder: Path, tokens: dict[str, int], vocab_size: int) -> Path:
    folder.mkdir()
    config = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8}
    config |= {"num_attention_heads": 1, "vocab_size": vocab_size}
    (folder / "config.json").write_text(json.dumps(config))
    if tokens:
        added = [{"content": "<end>", "id": len(tokens)}]
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": tokens}, "added_tokens": added}))
    return folder


def test_a_teacher_has_the_student_s_tokens(tmp_path: Path) -> None:
    student = tokenizer(tmp_path / "student", {"a": 0, "b": 1}, 8)
    check_vocabulary(student, tokenizer(tmp_path / "padded", {"a": 0, "b": 1}, 16))
    with pytest.raises(CheckpointMismatch, match="'a' with ids 1 and 0"):
        check_vocabulary(student, tokenizer(tmp_path / "swapped", {"a": 1, "b": 0}, 8))
    with pytest.raises(CheckpointMismatch, match="'<end>' with ids 3 and 2"):
        check_vocabulary(student, tokenizer(tmp_path / "more", {"a": 0, "b": 1, "c": 2}, 8))
    check_vocabulary(student, tokenizer(tmp_path / "unknown", {}, 8))
    with pytest.raises(CheckpointMismatch, match="16 tokens"):
        check_vocabulary(student, tokenizer(tmp_path / "unlike", {}, 16))


def test_tokens_that_the_teacher_lacks_are_refused(tiny: Path, tmp_path: Path, trainer: Trainer) -> None:
    """Refuse tokens by the ids of a sample if no tokenizer refused them before."""
    make_model(tmp_path / "small", vocab_size=40)
    algorithm = {"use_opd": True, "opd_type": "megatron"}
    with (
        pytest.raises(CheckpointMismatch, match="40 tokens"),
        trainer(tiny, algorithm, opd_teacher_load=str(tmp_path / "small")),
    ):
        pass
