"""`PackedSequences` and `PackedAttention` where a device is not the CPU, as far as a CPU shows it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.transformer.attention import Attention
from torch import Tensor

from actors.megatron import attention
from actors.megatron.attention import PackedAttention, PackedSequences, give_ends_to_kernels, takes_groups
from actors.megatron.attention_kernel import AttentionCall, AttentionKernel, kernel_for, varlen_attention
from actors.megatron.forward import pack, response_log_probs, response_outputs
from actors.step.micro_batch import MicroBatch
from tests.megatron.tiny import make_batch

Trainer = Callable[..., Any]
LENGTHS = [5, 3, 1, 7]
READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu")


class Watched(Tensor):
    """Replace a tensor on a device, and all that is computed from it; record what Python reads of it."""

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
        outputs = response_outputs(model, moved)
        assert isinstance(outputs, Watched)
        assert Watched.reads == []
        assert torch.equal(outputs.as_subclass(Tensor), expected)
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
    """Pass the ends of the batch that RoPE reads on the host, also without a wait."""
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
        (model, packed), seen = (rank.trainee.model, PackedSequences.of(LENGTHS, None, torch.device("meta"))), []
        for layer in layers_of(model):
            monkeypatch.setattr(layer.config, "apply_rope_fusion", True)
            layer.forward = lambda *args, packed_seq_params: seen.append(packed_seq_params)
        give_ends_to_kernels(model)
        for layer in layers_of(model):
            layer(torch.zeros(1), None, packed_seq_params=packed)
    assert [params.cu_seqlens_q is packed.ends is params.cu_seqlens_kv for params in seen] == [True] * len(
        layers_of(model)
    )


def test_ends_are_on_the_host_and_on_the_device() -> None:
    packed = PackedSequences.of(LENGTHS, None, torch.device("meta"))
    assert packed.cu_seqlens_q.tolist() == packed.cu_seqlens_kv.tolist() == [0, 5, 8, 9, 16]
    for tensor in (packed.ends, packed.to_grid, packed.from_grid):
        assert tensor is not None
        assert tensor.device.type == "meta"
    assert packed.ends is not None
    assert (packed.ends.dtype, packed.ends.shape) == (torch.int32, (5,))


def outcome(dtype: torch.dtype, heads: Sequence[int] = (4, 2, 2), lengths: Sequence[int] = LENGTHS) -> list[Tensor]:
    """Output and gradients of query heads over key heads."""
    torch.manual_seed(0)
    config: Any = SimpleNamespace()
    layer, packed = PackedAttention(config), PackedSequences.of(lengths, None, torch.device("cpu"))
    leaves = [torch.randn(sum(lengths), count, 8, dtype=dtype, requires_grad=True) for count in heads]
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


def plain_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None,
    window_size: tuple[int, int],
    enable_gqa: bool,
) -> Tensor:
    """Compute what torch documents of `varlen_attn`, query by query. [tokens, heads, size] of each -> of the query."""
    assert window_size == (-1, 0)
    assert enable_gqa is (query.size(1) != key.size(1))
    assert cu_seq_q.dtype is cu_seq_k.dtype is torch.int32
    times, factor = query.size(1) // key.size(1), scale or query.size(-1) ** -0.5
    rows, ends = [], cu_seq_q.tolist()
    assert ends == cu_seq_k.tolist()
    assert max_q == max_k == max(end - begin for begin, end in pairwise(ends))
    for begin, end in pairwise(ends):
        for place in range(begin, end):
            heads = []
            for head in range(query.size(1)):
                seen = key[begin : place + 1, head // times] @ query[place, head]
                heads.append((seen * factor).softmax(0) @ value[begin : place + 1, head // times])
            rows.append(torch.stack(heads))
    return torch.stack(rows)


@pytest.fixture
def in_place_of_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packed kernel is taken for all, and computed by `plain_varlen`: torch has none for the CPU."""
    monkeypatch.setattr(attention, "kernel_for", lambda call: AttentionKernel.VARLEN)
    monkeypatch.setattr(attention, "varlen_attention", lambda: plain_varlen)


@pytest.mark.parametrize("heads", [(4, 2, 2), (3, 3, 3), (4, 1, 1)])
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [1, 1, 6], [2, 9, 1]])
def test_the_packed_kernel_is_the_same_attention(
    heads: Sequence[int], lengths: Sequence[int], request: pytest.FixtureRequest
) -> None:
    """Output and gradients of grids, with fewer key heads too. A batch may be filled up by a last sequence of one."""
    grids = outcome(torch.float64, heads, lengths)
    request.getfixturevalue("in_place_of_torch_s")
    for seen, expected in zip(outcome(torch.float64, heads, lengths), grids, strict=True):
        torch.testing.assert_close(seen, expected, atol=1e-12, rtol=1e-12)


def test_a_model_with_the_packed_kernel_gives_the_same_log_probs(
    tiny: Path, trainer: Trainer, request: pytest.FixtureRequest
) -> None:
    """Use a batch that is filled up to a multiple, and compare the gradient of all weights."""
    with trainer(tiny) as rank:
        model = rank.trainee.model.module
        batch = pack(make_batch().samples[:5], rank.place.device, multiple_of=16)

        def both() -> list[Tensor]:
            model.zero_grad()
            parts, _ = response_log_probs(model, batch, 0.7, rank.place.tensor)
            parameters = list(model.parameters())
            return [torch.cat(parts), *torch.autograd.grad(torch.cat(parts).sum(), parameters)]

        grids = both()
        request.getfixturevalue("in_place_of_torch_s")
        for seen, expected in zip(both(), grids, strict=True):
            torch.testing.assert_close(seen, expected, atol=2e-5, rtol=1e-4)


def test_torch_s_kernel_takes_our_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shapes, forward and backward: the meta device has no values."""
    monkeypatch.setattr(attention, "kernel_for", lambda call: AttentionKernel.VARLEN)
    config: Any = SimpleNamespace()
    device = torch.device("meta")
    leaves = [
        torch.empty(sum(LENGTHS), heads, 8, dtype=torch.bfloat16, device=device, requires_grad=True)
        for heads in (4, 2, 2)
    ]
    packed = PackedSequences.of(LENGTHS, None, device)
    out = PackedAttention(config)(*leaves, None, packed_seq_params=packed)
    assert varlen_attention() is not None
    assert (out.shape, out.dtype) == ((sum(LENGTHS), 32), torch.bfloat16)
    gradients = torch.autograd.grad(out.sum(), leaves)
    assert [gradient.shape for gradient in gradients] == [leaf.shape for leaf in leaves]


HALF = AttentionCall((9, 0), torch.bfloat16, head_size=128, sequences=2, shares=False, has_varlen=True)


@pytest.mark.parametrize(
    ("changed", "kernel"),
    [
        ({}, AttentionKernel.VARLEN),
        ({"dtype": torch.float16}, AttentionKernel.VARLEN),
        ({"capability": (8, 0), "head_size": 192}, AttentionKernel.VARLEN),
        ({"capability": None}, AttentionKernel.GRIDS),
        ({"capability": (7, 5)}, AttentionKernel.GRIDS),
        ({"dtype": torch.float32}, AttentionKernel.GRIDS),
        ({"head_size": 256}, AttentionKernel.GRIDS),
        ({"head_size": 100}, AttentionKernel.GRIDS),
        ({"sequences": 1}, AttentionKernel.GRIDS),
        ({"shares": True}, AttentionKernel.GRIDS),
        ({"has_varlen": False}, AttentionKernel.GRIDS),
    ],
)
def test_which_kernel_is_taken(changed: dict[str, Any], kernel: AttentionKernel) -> None:
    assert kernel_for(dataclasses.replace(HALF, **changed)) is kernel


def test_the_choice_is_told_what_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[AttentionCall] = []

    def noted(call: AttentionCall) -> AttentionKernel:
        calls.append(call)
        return kernel_for(call)

    monkeypatch.setattr(attention, "kernel_for", noted)
    outcome(torch.float64)
    assert calls == [AttentionCall(None, torch.float64, 8, len(LENGTHS), shares=False, has_varlen=False)]
