"""The quick RMSNorm and rotary embedding give the bits of SGLang's own formulas, which stand here as the reference."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serve_apps.engines.cpu import layers

ROWS, HEADS, SIZE = 37, 3, 32


def _refused(*_: Any) -> str:
    return "left to SGLang"


@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("features", [SIZE, 576])
def test_rms_norm(features: int, with_residual: bool) -> None:
    norm = SimpleNamespace(weight=torch.rand(features), variance_epsilon=1e-6, variance_size_override=None)
    x = torch.randn(ROWS, 2 * features)[:, features:]  # as a slice of the projection of queries, keys and values
    residual = torch.randn(ROWS, features) if with_residual else None
    summed = x if residual is None else x + residual
    variance = summed.contiguous().pow(2).mean(dim=-1, keepdim=True)
    expected = summed * torch.rsqrt(variance + norm.variance_epsilon) * norm.weight
    outputs = layers.rms_norm(_refused, norm, x, residual)
    normed, kept = outputs if with_residual else (outputs, summed)
    assert torch.equal(normed, expected)
    assert torch.equal(kept, summed)
    assert layers.rms_norm(_refused, norm, x.bfloat16(), residual) == "left to SGLang"


def test_rotary_embedding() -> None:
    rope = SimpleNamespace(
        is_neox_style=True, rotary_dim=SIZE, head_size=SIZE, cos_sin_cache=torch.rand(100, SIZE) * 2 - 1
    )
    positions = torch.arange(50, 50 + ROWS)
    query, key = torch.randn(ROWS, (HEADS + 1) * SIZE).split([HEADS * SIZE, SIZE], dim=-1)
    cos, sin = (half[:, None] for half in rope.cos_sin_cache[positions].chunk(2, dim=-1))
    for x, rotated in zip((query, key), layers.rotary_embedding(_refused, rope, positions, query, key), strict=True):
        first, second = x.view(ROWS, -1, SIZE).chunk(2, dim=-1)
        expected = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        assert torch.equal(rotated, expected.view(x.shape))
    rope.rotary_dim = SIZE // 2
    assert layers.rotary_embedding(_refused, rope, positions, query, key) == "left to SGLang"
