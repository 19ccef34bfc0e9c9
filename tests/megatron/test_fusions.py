"""Which fused kernels a rank takes, and that what Megatron does with them is the same training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.tensor_parallel import layers
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from actors.megatron import fusions as fusions_module
from actors.megatron import model as model_module
from actors.megatron.families.registry import read_architecture
from actors.megatron.forward import pack, response_log_probs
from actors.megatron.fusions import FusedKernels, fusions
from actors.megatron.model import transformer_config
from actors.step.log_probs import LogitMemory
from schemas.errors import InvalidValue
from slime_events.core.config.trainer import TrainerSettings
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]
NAMES = ("bias_activation_fusion", "masked_softmax_fusion", "gradient_accumulation_fusion", "apply_rope_fusion")
OFF = dict.fromkeys(NAMES, False)
ALL = FusedKernels(compiled=True, gradients=True, rope=True)


@pytest.mark.parametrize(
    ("flags", "kernels", "on"),
    [
        ({}, None, ()),
        ({}, FusedKernels(), ()),
        ({}, FusedKernels(compiled=True), ("bias_activation_fusion",)),
        ({}, FusedKernels(gradients=True), ("gradient_accumulation_fusion",)),
        ({}, FusedKernels(rope=True), ("apply_rope_fusion",)),
        ({}, ALL, ("bias_activation_fusion", "gradient_accumulation_fusion", "apply_rope_fusion")),
        ({"rotary_interleaved": True}, FusedKernels(rope=True), ()),
        ({"activation_func_clamp_value": 7.0}, FusedKernels(compiled=True), ()),
        ({"use_te_activation_func": True}, FusedKernels(compiled=True), ()),
        ({"glu_linear_offset": 1.0}, FusedKernels(compiled=True), ()),
        (OFF, ALL, ()),
        ({"apply_rope_fusion": False}, ALL, ("bias_activation_fusion", "gradient_accumulation_fusion")),
        ({"bias_activation_fusion": True}, FusedKernels(compiled=True), ("bias_activation_fusion",)),
    ],
)
def test_a_fusion_is_on_where_its_kernel_is(
    flags: dict[str, Any], kernels: FusedKernels | None, on: tuple[str, ...]
) -> None:
    assert fusions(flags, kernels) == {name: name in on for name in NAMES}


@pytest.mark.parametrize("name", ["bias_activation_fusion", "gradient_accumulation_fusion", "apply_rope_fusion"])
def test_a_fusion_without_its_kernel_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        fusions({name: True}, FusedKernels())
    assert fusions({name: True}, ALL)[name]


def test_a_fusion_that_does_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    fusions({"masked_softmax_fusion": True}, ALL)
    assert "masked_softmax_fusion" in caplog.text


def test_kernels_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No import: a module that cannot be loaded is found out by the layer that wants it."""
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(fusions_module.sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    there: set[str] = set()
    monkeypatch.setattr(fusions_module, "_is_there", lambda module: module in there)
    with_compiler, without = {"PATH": str(tmp_path)}, {"PATH": str(tmp_path / "none")}
    assert FusedKernels.of_this_machine(with_compiler) == FusedKernels()
    there |= {"triton", "fused_weight_gradient_mlp_cuda", "transformer_engine"}
    assert FusedKernels.of_this_machine(with_compiler) == ALL
    assert FusedKernels.of_this_machine(without | {"CC": str(compiler)}).compiled
    assert not FusedKernels.of_this_machine(without).compiled
    (tmp_path / "Python.h").unlink()
    assert not FusedKernels.of_this_machine(with_compiler).compiled


def test_megatron_takes_the_choice(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its config refuses none of what a GPU would be given."""
    architecture, settings = read_architecture(tiny), TrainerSettings(hf_checkpoint=str(tiny))
    assert not transformer_config(architecture, settings, {}).bias_activation_fusion
    monkeypatch.setattr(model_module, "on_cpu", lambda: False)
    monkeypatch.setattr(FusedKernels, "of_this_machine", lambda: FusedKernels(compiled=True, gradients=True))
    config = transformer_config(architecture, settings, {})
    assert [getattr(config, name) for name in NAMES] == [True, False, True, False]
    assert not transformer_config(architecture, settings, {"bias_activation_fusion": False}).bias_activation_fusion
    with pytest.raises(InvalidValue, match="Transformer Engine"):
        transformer_config(architecture, settings, {"apply_rope_fusion": True})


class Outcome:
    """Log-probs of a batch, gradients of all weights, and bytes that were kept for the backward pass."""

    def __init__(self, rank: Any) -> None:
        trainee, kept = rank.trainee, dict[int, int]()
        batch = pack(make_batch().samples, rank.place.device)

        def keep(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        trainee.model.zero_grad_buffer()
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            # Rows in chunks: the output layer, whose weight is the embedding's too, is gone through many times.
            parts, _ = response_log_probs(trainee.model, batch, 0.7, rank.place.tensor, memory=LogitMemory(20))
        log_probs = torch.cat(parts)
        log_probs.sum().backward()
        self.tokens, self.kept = batch.token_ids.numel(), sum(kept.values())
        self.values = [log_probs.detach(), *(parameter.main_grad.clone() for parameter in trainee.model.parameters())]

    def is_near(self, other: Outcome) -> None:
        for mine, theirs in zip(self.values, other.values, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def with_fusion(name: str, tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Outcome:
    with monkeypatch.context() as patch:
        patch.setattr(model_module, "fusions", lambda flags, kernels: OFF | {name: True})
        with trainer(tiny, **settings) as rank:
            assert getattr(rank.trainee.model.config, name)
            return Outcome(rank)


def without(tiny: Path, trainer: Trainer) -> Outcome:
    with trainer(tiny) as rank:
        return Outcome(rank)


def test_fused_swiglu_is_the_same_and_keeps_less(tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep three of five tensors as wide as an MLP: neither what silu returns nor a copy of what it is
    multiplied with.
    """
    fused, plain = with_fusion("bias_activation_fusion", tiny, trainer, monkeypatch), without(tiny, trainer)
    fused.is_near(plain)
    architecture = read_architecture(tiny)
    part = plain.tokens * architecture.ffn_hidden_size * architecture.num_layers * 4
    assert plain.kept - fused.kept == 2 * part


def test_fused_weight_gradients_are_the_same(tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate copy of Apex's kernel, and a weight that is embedding and output layer."""
    calls: list[torch.Size] = []

    def accumulate(seen: Tensor, grad: Tensor, main_grad: Tensor) -> None:
        calls.append(main_grad.shape)
        main_grad += torch.einsum("to,ti->oi", grad.flatten(0, -2).double(), seen.flatten(0, -2).double())

    apex = SimpleNamespace(wgrad_gemm_accum_fp32=accumulate)
    monkeypatch.setattr(layers, "fused_weight_gradient_mlp_cuda", apex, raising=False)
    monkeypatch.setattr(layers, "_grad_accum_fusion_available", True)
    fused, plain = with_fusion("gradient_accumulation_fusion", tiny, trainer, monkeypatch), without(tiny, trainer)
    assert len(calls) > 4 * read_architecture(tiny).num_layers
    fused.is_near(plain)


def test_fused_rope_is_the_same(tiny: Path, trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate copy of Transformer Engine's kernel: each token turned by its place in its sequence."""
    calls: list[int] = []

    def turn(t: Tensor, cu_seqlens: Tensor, freqs: Tensor, cp_size: int, cp_rank: int) -> Tensor:
        calls.append(len(cu_seqlens))
        assert (cp_size, cp_rank) == (1, 0)
        lengths = cu_seqlens.diff().tolist()
        angle = torch.cat([freqs[:length, 0, 0] for length in lengths]).unsqueeze(1)
        first, second = t.chunk(2, -1)
        return t * angle.cos() + torch.cat([-second, first], -1) * angle.sin()

    monkeypatch.setattr(rope_utils, "fused_apply_rotary_pos_emb_thd", turn)
    fused, plain = with_fusion("apply_rope_fusion", tiny, trainer, monkeypatch), without(tiny, trainer)
    assert len(calls) == 2 * read_architecture(tiny).num_layers
    fused.is_near(plain)
