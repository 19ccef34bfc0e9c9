"""The bias of a router: it follows the load if the user asks for it, and takes every path that weights take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from actors.megatron import rank as rank_module
from actors.step.policy import REFERENCE
from slime_events.core.training.datums import Datum
from slime_events.core.training.train_batch import TrainBatch
from tests.megatron.test_commanded_step import datums, pass_of, step
from tests.megatron.tiny import MOVING_BIAS, make_batch, make_model

Trainer = Callable[..., Any]
BIAS = ".gate.e_score_correction_bias"


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glm")
    make_model(folder, "glm4_moe", tied=False)
    return folder


def biases_of(rank: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in rank.export_weights() if name.endswith(BIAS)}


def moved(model: PreTrainedModel, batch: TrainBatch, rate: float) -> dict[str, Tensor]:
    """Return the biases after a step by the tokens that transformers' routers give each expert."""
    chosen = dict[str, list[Tensor]]()
    gates = {name: module for name, module in model.named_modules() if name.endswith("mlp.gate")}
    for name, gate in gates.items():
        gate.register_forward_hook(lambda _, __, output, name=name: chosen.setdefault(name, []).append(output[2]))
    with torch.no_grad():
        for sample in batch.samples:
            model(torch.from_numpy(sample.tokens).long()[None])
    expected = {}
    for name, gate in gates.items():
        before: Tensor = gate.e_score_correction_bias  # type: ignore[assignment]  # a buffer
        load = torch.cat([experts.flatten() for experts in chosen[name]]).bincount(minlength=len(before)).float()
        expected[f"{name}.e_score_correction_bias"] = before + rate * (load.mean() - load).sign()
    return expected


def test_a_step_moves_the_bias_by_the_load_of_each_expert(glm: Path, tmp_path: Path, trainer: Trainer) -> None:
    expected = moved(make_model(tmp_path, "glm4_moe", tied=False), make_batch(), 0.01)
    with trainer(glm, **MOVING_BIAS) as rank:
        rank.train(make_batch())
        biases = biases_of(rank)
    assert biases.keys() == expected.keys()
    for name, bias in expected.items():
        torch.testing.assert_close(biases[name], bias, atol=1e-7, rtol=0)


def test_no_step_moves_the_bias_unless_the_user_asks_for_it(glm: Path, trainer: Trainer) -> None:
    before = load_file(glm / "model.safetensors")
    with trainer(glm) as rank:
        rank.train(make_batch())
        assert all(torch.equal(bias, before[name]) for name, bias in biases_of(rank).items())


def test_an_update_that_is_not_taken_leaves_the_bias(glm: Path, trainer: Trainer) -> None:
    """A client's weights of 1e38 overflow the gradient."""
    huge = replace(pass_of("cross_entropy"), datums=tuple(map(_huge, datums(0))))
    with trainer(glm, **MOVING_BIAS) as rank:
        before = biases_of(rank)
        assert rank.train(step(0, huge)).metrics["skipped"] == 1.0
        assert all(torch.equal(bias, before[name]) for name, bias in biases_of(rank).items())
        rank.train(step(1, pass_of("cross_entropy")))
        after = biases_of(rank)
    assert not any(torch.equal(bias, before[name]) for name, bias in after.items())
    with trainer(glm, **MOVING_BIAS) as rank:
        rank.train(step(0, pass_of("cross_entropy")))
        assert all(torch.equal(bias, after[name]) for name, bias in biases_of(rank).items()), "of its own load alone"


def _huge(datum: Datum) -> Datum:
    return replace(datum, inputs={**datum.inputs, "weights": np.full(len(datum.targets), 1e38, np.float32)})


def test_passes_whose_gradients_are_discarded_leave_the_bias(glm: Path, trainer: Trainer) -> None:
    discarded, own = pass_of("cross_entropy", 7), pass_of("cross_entropy")
    moved = []
    for passes in ([discarded, own], [own]):
        with trainer(glm, **MOVING_BIAS) as rank:
            for request in passes:
                rank.run_pass(request, True)
            rank.train(step(0, own))
            moved.append(biases_of(rank))
    assert all(torch.equal(bias, moved[1][name]) for name, bias in moved[0].items())


def test_a_checkpoint_has_the_bias(glm: Path, tmp_path: Path, trainer: Trainer) -> None:
    with trainer(glm, **MOVING_BIAS) as rank:
        rank.train(make_batch())
        rank.save_checkpoint(tmp_path / "checkpoint")
        saved, digest = biases_of(rank), rank.weights_digest()
        expected = rank.train(make_batch(1)).metrics["loss"], rank.weights_digest()
    with trainer(glm, load=str(tmp_path / "checkpoint"), **MOVING_BIAS) as rank:
        assert rank.weights_digest() == digest
        assert all(torch.equal(bias, saved[name]) for name, bias in biases_of(rank).items())
        assert (rank.train(make_batch(1)).metrics["loss"], rank.weights_digest()) == expected


def test_bfloat16_keeps_every_bit_of_the_bias(glm: Path, trainer: Trainer) -> None:
    before = load_file(glm / "model.safetensors")
    with trainer(glm, bf16=True) as rank:
        rank.train(make_batch())
        for name, bias in biases_of(rank).items():
            assert bias.dtype is torch.float32
            assert torch.equal(bias, before[name])
            assert not torch.equal(bias, bias.bfloat16().float())


def test_a_reference_has_its_own_bias(
    glm: Path, tmp_path: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare scores of a reference that exchanges its weights with the policy's, with those of a model of its own."""
    make_model(tmp_path, "glm4_moe", tied=False, seed=7)
    other, outcomes = load_file(tmp_path / "model.safetensors"), []
    for on_host in (False, True):
        monkeypatch.setattr(rank_module, "waits_on_host", lambda on_host=on_host: on_host)
        kl = {"use_kl_loss": True, "kl_loss_coef": 0.1}
        with trainer(glm, kl, ref_load=str(tmp_path), **MOVING_BIAS) as rank:
            outcomes.append(rank.train(make_batch()).metrics["kl_loss"])
            frozen = rank.trainee.frozen[REFERENCE]
            after = biases_of(rank)
            if on_host:
                with frozen.residence.present(rank.trainee.model):
                    shown = biases_of(rank)
                assert all(torch.equal(bias, other[name]) for name, bias in shown.items())
            assert all(torch.equal(bias, after[name]) for name, bias in biases_of(rank).items())
            assert not any(torch.equal(bias, other[name]) for name, bias in after.items())
    assert outcomes[0] == outcomes[1] > 0
