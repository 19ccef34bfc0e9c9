"""Sequence parallelism on the CPU: two ranks with a part of each sequence train as one rank does."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig

from actors.megatron.families.norm import Norm
from actors.megatron.tree_batch import pack_tree
from tests.harness.layouts.combinations import Combination
from tests.harness.layouts.comparison import Bench
from tests.megatron.tiny import make_batch
from tests.megatron.two_processes import RankPair

CASES = ("reference, teacher, entropy, 2 updates", "critic", "tree packing", "log-probs in chunks")


@pytest.fixture(scope="module")
def bench(rank_pair: RankPair, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Comparisons on the processes of this folder."""
    return Bench(tmp_path_factory.mktemp("layouts"), rank_pair)


@pytest.mark.real
@pytest.mark.parametrize("variation", CASES)
def test_two_ranks_with_parts_of_sequences_equal_one(variation: str, bench: Bench) -> None:
    row = bench.compare(Combination("qwen3", tp=2, sp=True, variation=variation))
    assert row.is_good, row
    assert not row.refused, row


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_has_the_bits_of_torchs(dtype: torch.dtype) -> None:
    config = TransformerConfig(
        num_layers=1, hidden_size=32, num_attention_heads=4, normalization="RMSNorm", params_dtype=dtype
    )
    hidden, gradient = torch.randn(2, 7, 1, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    results = []
    for kind in (Norm, WrappedTorchNorm):
        norm = kind(config=config, hidden_size=32, eps=1e-6).to(dtype)
        inputs = hidden.clone().requires_grad_()
        outputs = norm(inputs)
        outputs.backward(gradient)
        results.append((outputs.detach(), inputs.grad, norm.weight.grad))
        assert [name for name, _ in norm.named_parameters()] == ["weight"]
    for ours, torchs in zip(*results, strict=True):
        assert torch.equal(ours, torchs)


def test_a_tree_is_filled_up_with_a_sequence_that_no_token_sees() -> None:
    samples, device = make_batch(groups=1).samples, torch.device("cpu")
    plain, filled = (
        pack_tree(samples, device, lambda shared, tokens: True, multiple_of=multiple) for multiple in (1, 64)
    )
    total = plain.token_ids.shape[1]
    assert filled.token_ids.shape[1] == 64 * -(-total // 64) > total
    assert torch.equal(filled.position_ids[:, :total], plain.position_ids)
    assert torch.equal(filled.targets, plain.targets)
    assert torch.equal(filled.packed.rows, plain.packed.rows)
    queries = torch.arange(filled.token_ids.shape[1], dtype=torch.float32)[:, None, None]
    below = partial(torch.ge, other=float(total))
    for grid, keys, seen in zip(
        filled.packed.queries(queries), filled.packed.keys(queries), filled.packed.masks, strict=True
    ):
        if seen is not None:  # a grid of sequences with shared prefixes, of which the fill is none
            visible = (seen[:, 0] == 0) & below(keys.flatten(1))[:, None, :]
            assert not (visible & ~below(grid.flatten(1))[:, :, None]).any()
