"""`PackedSequences` and `PackedAttention` where a device is not the CPU, as far as a CPU shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from actors.megatron import attention
from actors.megatron.attention import PackedAttention, PackedSequences, takes_groups

LENGTHS = [5, 3, 1, 7]


def test_rope_reads_the_ends_of_sequences_on_the_host() -> None:
    """Reading them from a device waits for it, twice for queries and keys of each layer."""
    packed = PackedSequences.of(LENGTHS, None, torch.device("meta"))
    assert packed.cu_seqlens_q.tolist() == packed.cu_seqlens_kv.tolist() == [0, 5, 8, 9, 16]
    assert packed.to_grid is not None
    assert packed.to_grid.device.type == "meta"


def test_transformer_engine_reads_them_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "has_transformer_engine", lambda: True)
    assert PackedSequences.of(LENGTHS, None, torch.device("meta")).cu_seqlens_q.device.type == "meta"


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
