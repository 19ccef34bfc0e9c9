"""Experts in groups of rows have the results of experts that run one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.megatron.grouped_experts import GroupedExperts, why_not
from tests.megatron.gradients import gradients_of
from tests.megatron.tiny import make_batch, make_model

Trainer = Callable[..., Any]
GROUPED = {"moe_grouped_gemm": True}
SEVERAL = {"clip_grad": 0.0, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 60}


@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe"])
def test_each_gradient_is_that_of_the_loop(family: str, tmp_path: Path, trainer: Trainer) -> None:
    make_model(tmp_path, family, tied=False)
    outcomes = []
    for flags in ({}, GROUPED):
        with trainer(tmp_path, megatron=flags, **SEVERAL) as rank:
            kinds = [type(module) for module in rank.trainee.model.modules()]
            assert (GroupedExperts in kinds) == bool(flags)
            begun = rank.weights_digest(), rank.optimizer_digest()
            metrics = rank.train(make_batch()).metrics
            outcomes.append((begun, gradients_of(rank), metrics["loss"], metrics["grad_norm"]))
            if not flags:
                rank.save_checkpoint(tmp_path / "checkpoint")
                saved = rank.weights_digest(), rank.optimizer_digest()
    loop, grouped = outcomes
    assert loop[0] == grouped[0], "digests of the same tensors"
    assert loop[1].keys() == grouped[1].keys()
    for name, gradient in loop[1].items():
        torch.testing.assert_close(grouped[1][name], gradient, atol=1e-6, rtol=1e-5, msg=name)
    assert grouped[2:] == pytest.approx(loop[2:], abs=1e-6, rel=1e-5)
    with trainer(tmp_path, megatron=GROUPED, load=str(tmp_path / "checkpoint")) as rank:
        assert (rank.weights_digest(), rank.optimizer_digest()) == saved


def test_experts_without_rows_have_no_gradient(tmp_path: Path, trainer: Trainer) -> None:
    """All tokens go to the same two of four experts, because the router gives all the same score."""
    model = make_model(tmp_path, "qwen3_moe", tied=False)
    with torch.no_grad():
        for layer in model.model.layers:  # type: ignore[union-attr]  # a module list
            layer.mlp.gate.weight.zero_()
    model.save_pretrained(tmp_path)
    outcomes = []
    for flags in ({}, GROUPED):
        with trainer(tmp_path, megatron=flags, bf16=True, **SEVERAL) as rank:
            rank.train(make_batch())
            outcomes.append(gradients_of(rank))
    loop, grouped = outcomes
    unused = [name for name, gradient in loop.items() if ".experts." in name and not gradient.any()]
    assert unused
    assert all(not grouped[name].any() for name in unused)
    for name, gradient in loop.items():
        atol = 0.02 * float(gradient.abs().max()) + 1e-6
        torch.testing.assert_close(grouped[name], gradient, atol=atol, rtol=0.02, msg=name)


@pytest.mark.parametrize(
    ("change", "capability", "reason"),
    [
        ({}, (9, 0), ""),
        ({}, (10, 0), ""),
        ({}, (8, 0), "8.0"),
        ({"bf16": False}, (9, 0), "bfloat16"),
        ({"bf16": False}, None, ""),
        ({"moe_ffn_hidden_size": 12}, (9, 0), "inner size of an expert 12"),
        ({"moe_ffn_hidden_size": 12}, None, ""),
        ({"fp8": "hybrid"}, (9, 0), "8 or 4 bits"),
        ({"activation_func_clamp_value": 7.0}, (9, 0), "SwiGLU"),
    ],
)
def test_where_the_kernel_fits(change: dict[str, Any], capability: tuple[int, int] | None, reason: str) -> None:
    fields = {
        "hidden_size": 64, "moe_ffn_hidden_size": 24, "fp8": None, "fp4": None, "bf16": True,
        "use_te_activation_func": False, "glu_linear_offset": 0.0, "activation_func_clamp_value": None,
    }  # fmt: skip
    config: Any = SimpleNamespace(**fields | change)
    got = why_not(config, capability)
    assert reason in got if reason else not got
