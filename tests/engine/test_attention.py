"""Attention in parts: every row as if its token had been alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from serve_apps.engines.cpu import attention

HEADS, KV_HEADS, DIM = 4, 2, 16
LENGTHS = torch.tensor([3, 40, 17, 1, 33, 64, 16])
NEW = torch.tensor([3, 33, 17, 1, 20, 64, 4])


class _Cache:
    """Random keys and values of `LENGTHS` tokens in slots at random."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.keys = torch.randn(512, KV_HEADS, DIM, generator=generator)
        self.values = torch.randn(512, KV_HEADS, DIM, generator=generator)
        self.table = torch.randperm(511, generator=generator)[: 7 * 70].view(7, 70) + 1
        self.requests = torch.randperm(7, generator=generator)
        self.backend: Any = SimpleNamespace(forward_metadata=None)
        attention.forget_parts(self.backend, None)

    def one_by_one(self, query: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Each query alone over the keys up to its own, padded to a block."""
        rows = []
        for request, length, count in zip(self.requests, LENGTHS.tolist(), new.tolist(), strict=True):
            for seen in range(length - count + 1, length + 1):
                slots = self.table[request, :seen]
                padding = (0, 0, 0, -seen % attention.BLOCK)
                keys, values = (
                    torch.nn.functional.pad(cache[slots].transpose(0, 1), padding)[None]
                    for cache in (self.keys, self.values)
                )
                mask = torch.arange(keys.shape[2]) < seen
                row = query[len(rows)].view(1, HEADS, 1, DIM)
                rows.append(scaled_dot_product_attention(row, keys, values, mask.view(1, 1, 1, -1), enable_gqa=True))
        return torch.cat(rows).squeeze(2)


@pytest.mark.parametrize(
    ("lowered", "count"), [((), 1), (("ONE_PART_ELEMENTS",), 3), (("ONE_PART_ELEMENTS", "GATHERED_ELEMENTS"), 7)]
)
def test_decoding_in_any_parts(monkeypatch: pytest.MonkeyPatch, lowered: tuple[str, ...], count: int) -> None:
    for limit in lowered:
        monkeypatch.setattr(attention, limit, 1)
    cache = _Cache()
    query = torch.randn(len(LENGTHS), HEADS, DIM)
    expected = cache.one_by_one(query, torch.ones_like(LENGTHS))
    for _ in range(2):  # layers
        inputs = (query, torch.empty_like(query), cache.keys, cache.values, cache.table, cache.requests, LENGTHS)
        assert torch.equal(attention.decode(_unused, cache.backend, *inputs), expected)
    (parts,) = cache.backend.forward_metadata.values()
    assert len(parts) == count


@pytest.mark.parametrize(("lowered", "count"), [((), 5), (("MASK_ELEMENTS",), 7)])
def test_extending_in_any_parts(monkeypatch: pytest.MonkeyPatch, lowered: tuple[str, ...], count: int) -> None:
    for limit in lowered:
        monkeypatch.setattr(attention, limit, 1)
    cache = _Cache()
    query = torch.randn(int(NEW.sum()), HEADS, DIM)
    expected = cache.one_by_one(query, NEW)
    for _ in range(2):
        inputs = (query, torch.empty_like(query), cache.keys, cache.values, cache.table, cache.requests, LENGTHS)
        attended = attention.extend(_unused, cache.backend, *inputs, LENGTHS - NEW, NEW, causal=True)
        assert torch.equal(attended, expected)
    (parts,) = cache.backend.forward_metadata.values()
    assert len(parts) == count


def _unused(*_: Any) -> torch.Tensor:
    raise AssertionError("this is ours to do")
