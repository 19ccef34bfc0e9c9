"""`PackedSequences` and `PackedAttention` where a device is not the CPU, as far as a CPU shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.transformer.attention import Attention
from torch import Tensor

from actors.megatron import attention
from actors.megatron.attention import PackedAttention, PackedSequences, give_ends_to_kernels, takes_groups
from actors.megatron.forward import MicroBatch, response_outputs
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]
LENGTHS = [5, 3, 1, 7]
READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu")


class Watched(Tensor):
    """Stands for a tensor on a device, and so does all that is computed from it: notes what Python reads of it."""

    reads: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if (name := getattr(func, "__name__", "")) in READS:
            cls.reads.append(name)
        return super().__torch_function__(func, types, args, kwargs or {})


def watched(tensor: Tensor | None) -> Any:
    return None if tensor is None else tensor.as_subclass(Watched)


def on_a_device(batch: MicroBatch) -> MicroBatch:
    """The batch with what `pack` puts on the device watched."""
    moved = {name: watched(getattr(batch.packed, name)) for name in ("ends", "to_grid", "from_grid", "rows")}
    packed = dataclasses.replace(batch.packed, **moved)
    tokens, positions = watched(batch.token_ids), watched(batch.position_ids)
    return dataclasses.replace(batch, token_ids=tokens, position_ids=positions, packed=packed)


class OtherKernel(torch.nn.Module):
    """Another core attention than ours, as Transformer Engine's is one: takes the ends where Megatron has them."""

    def __init__(self, ours: PackedAttention) -> None:
        super().__init__()
        self.ours, self.ends = ours, list[Tensor]()

    def forward(self, *args: Any, packed_seq_params: PackedSequences, **more: Any) -> Tensor:
        self.ends += [packed_seq_params.cu_seqlens_q, packed_seq_params.cu_seqlens_kv]
        out: Tensor = self.ours(*args, packed_seq_params=packed_seq_params, **more)
        return out


def layers_of(model: torch.nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Attention)]


def test_no_layer_waits_for_the_device(tiny: Path, trainer: Trainer) -> None:
    """Megatron's RoPE reads the ends of sequences in Python, for queries and keys of each layer: on the host."""
    with trainer(tiny) as rank, torch.no_grad():
        batch, model = rank.trainee.pack(make_batch().samples, range(8)), rank.trainee.model
        expected = response_outputs(model, batch)
        Watched.reads.clear()
        moved = on_a_device(batch)
        found = response_outputs(model, moved)
        assert isinstance(found, Watched)
        assert Watched.reads == []
        assert torch.equal(found.as_subclass(Tensor), expected)
        ends = moved.packed.ends
        response_outputs(model, dataclasses.replace(moved, packed=dataclasses.replace(moved.packed, cu_seqlens_q=ends)))
        assert len(Watched.reads) >= len(layers_of(model)), "this test sees who reads"


PROVIDER = """
from megatron.training import get_args
from slime.backends.megatron_utils.model_provider import get_model_provider_func

from tests.megatron.test_packed_attention import OtherKernel, layers_of


def build(pre_process, post_process):
    model = get_model_provider_func(get_args())(pre_process, post_process)
    for layer in layers_of(model):
        layer.core_attention = OtherKernel(layer.core_attention)
    return model
"""


def test_a_kernel_of_others_gets_the_ends_on_the_device(tmp_path: Path, tiny: Path, trainer: Trainer) -> None:
    """Of the batch that RoPE reads on the host; without a wait either."""
    file = tmp_path / "other_kernel.py"
    file.write_text(PROVIDER)
    with trainer(tiny, custom_model_provider_path=f"{file}:build") as rank, torch.no_grad():
        batch, model = rank.trainee.pack(make_batch().samples, range(8)), rank.trainee.model
        expected = response_outputs(model, batch)
        for layer in layers_of(model):
            layer.core_attention.ends.clear()
        Watched.reads.clear()
        moved = on_a_device(batch)
        assert torch.equal(response_outputs(model, moved).as_subclass(Tensor), expected)
        assert Watched.reads == []
        for layer in layers_of(model):
            assert [ends is moved.packed.ends for ends in layer.core_attention.ends] == [True, True]


def test_fused_rope_gets_the_ends_on_the_device(monkeypatch: pytest.MonkeyPatch, tiny: Path, trainer: Trainer) -> None:
    """It is a kernel: what reads them is the layer, before its core attention."""
    with trainer(tiny) as rank:
        (model, packed), seen = (rank.trainee.model, PackedSequences.of(LENGTHS, None, torch.device("cpu"))), []
        for layer in layers_of(model):
            monkeypatch.setattr(layer.config, "apply_rope_fusion", True)
            layer.forward = lambda *args, packed_seq_params: seen.append(packed_seq_params)
        give_ends_to_kernels(model)
        for layer in layers_of(model):
            layer(torch.zeros(1), None, packed_seq_params=packed)
    assert [one.cu_seqlens_q is packed.ends is one.cu_seqlens_kv for one in seen] == [True] * len(layers_of(model))


def test_ends_are_on_the_host_and_on_the_device() -> None:
    packed = PackedSequences.of(LENGTHS, None, torch.device("meta"))
    assert packed.cu_seqlens_q.tolist() == packed.cu_seqlens_kv.tolist() == [0, 5, 8, 9, 16]
    for tensor in (packed.ends, packed.to_grid, packed.from_grid):
        assert tensor is not None
        assert tensor.device.type == "meta"
    assert packed.ends is not None
    assert (packed.ends.dtype, packed.ends.shape) == (torch.int32, (5,))


def outcome(dtype: torch.dtype) -> list[Tensor]:
    """Output and gradients of four query heads over two key heads."""
    torch.manual_seed(0)
    config: Any = SimpleNamespace()
    layer, packed = PackedAttention(config), PackedSequences.of(LENGTHS, None, torch.device("cpu"))
    leaves = [torch.randn(sum(LENGTHS), heads, 8, dtype=dtype, requires_grad=True) for heads in (4, 2, 2)]
    out = layer(*leaves, None, packed_seq_params=packed)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=dtype).view_as(out))
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def test_repeated_keys_are_the_same_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    grouped = outcome(torch.float64)
    monkeypatch.setattr(attention, "takes_groups", lambda query: False)
    for seen, expected in zip(outcome(torch.float64), grouped, strict=True):
        torch.testing.assert_close(seen, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("is_cuda", "dtype", "takes"),
    [(False, torch.float32, True), (True, torch.bfloat16, True), (True, torch.float32, False)],
)
def test_keys_are_repeated_in_float32_on_cuda_alone(*, is_cuda: bool, dtype: torch.dtype, takes: bool) -> None:
    query: Any = SimpleNamespace(is_cuda=is_cuda, dtype=dtype)
    assert takes_groups(query) is takes
