"""`PackedSequences` where a device is not the CPU, as far as a CPU shows it."""

from __future__ import annotations

import pytest
import torch

from actors.megatron import attention
from actors.megatron.attention import PackedSequences

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
