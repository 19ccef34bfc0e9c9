"""The kernels of `PackedAttention`, and the one that it chooses: values, gradients and time at one layer's sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from actors.megatron.attention import PackedAttention, PackedSequences, in_grids, in_varlen
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import Scene, forget_peak, lengths_to, peak, synchronize

HEADS, GROUPS, SIZE = 14, 2, 64
"""Of Qwen2.5-0.5B."""
CASES = (
    (8192, 512, torch.bfloat16),
    (8192, 2048, torch.bfloat16),
    (8192, 8192, torch.bfloat16),
    (32_768, 4096, torch.bfloat16),
    (32_768, 32_768, torch.bfloat16),
    (8192, 2048, torch.float32),
)
"""Tokens, the longest sequence among them, and the dtype."""
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def ours(lengths: Sequence[int], device: torch.device) -> Attention:
    """Return `PackedAttention` as a layer calls it."""
    config: Any = SimpleNamespace()
    layer, packed = PackedAttention(config), PackedSequences.of(lengths, None, device)
    return lambda q, k, v: layer(q, k, v, None, packed_seq_params=packed)


def grids(lengths: Sequence[int], device: torch.device) -> Attention:
    """Return attention over right-padded grids, whatever `PackedAttention` chooses."""
    packed = PackedSequences.of(lengths, None, device)
    return lambda q, k, v: in_grids(q, k, v, packed, None)


def varlen(lengths: Sequence[int], device: torch.device) -> Attention:
    """Return torch's attention over packed tokens, whatever `PackedAttention` chooses."""
    packed = PackedSequences.of(lengths, None, device)
    return lambda q, k, v: in_varlen(q, k, v, packed, None)


def repeated(lengths: Sequence[int], device: torch.device) -> Attention:
    """Return attention over grids with a copy of the keys for each query head, for kernels without groups."""
    attend, times = grids(lengths, device), HEADS // GROUPS
    return lambda q, k, v: attend(q, k.repeat_interleave(times, 1), v.repeat_interleave(times, 1))


WAYS = {"ours": ours, "grids": grids, "grids, keys repeated": repeated, "varlen": varlen}


def inputs(tokens: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Return query, key and value of random numbers."""
    torch.manual_seed(tokens)
    heads = (HEADS, GROUPS, GROUPS)
    return [torch.randn(tokens, h, SIZE, device=device, dtype=dtype, requires_grad=True) for h in heads]


def outcome(attend: Attention, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return its output and gradients, float64."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    out = attend(*leaves)
    torch.autograd.backward(out, torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out).to(out.dtype))
    return [t.detach().double() for t in (out, *(leaf.grad for leaf in leaves if leaf.grad is not None))]


def apart(seen: Sequence[Tensor], true: Sequence[Tensor]) -> list[float]:
    """Return the norm of the difference over the norm, for the output and each gradient."""
    return [((s - t).norm() / t.norm()).item() for s, t in zip(seen, true, strict=True)]


def milliseconds(attend: Attention, tensors: Sequence[Tensor], repeat: int = 10) -> tuple[float, float, float]:
    """Return (forward, forward and backward, peak GiB), medians after two warm-ups."""
    times: dict[bool, list[float]] = {False: [], True: []}
    forget_peak()
    for number in range(repeat + 2):
        for backward in (False, True):
            synchronize()
            start = time.perf_counter()
            with torch.set_grad_enabled(backward):
                out = attend(*tensors)
            if backward:
                torch.autograd.backward(out, out.detach())
            synchronize()
            if number > 1:
                times[backward].append(1e3 * (time.perf_counter() - start))
    forward, both = (sorted(times[backward])[repeat // 2] for backward in (False, True))
    return forward, both, peak()


def look_values(scene: Scene) -> None:
    """Compare each in bfloat16 with the math path in float64, at one size."""
    device = torch.device(scene.device)
    lengths = lengths_to(1024, 256)
    tensors = inputs(1024, device, torch.bfloat16)
    exact = [t.detach().double() for t in tensors]
    with sdpa_kernel(SDPBackend.MATH):
        true = outcome(grids(lengths, device), exact)
    for name, make in (("PackedAttention", ours), ("grids", grids), ("varlen_attn", varlen)):
        try:
            far = apart(outcome(make(lengths, device), tensors), true)
        except Exception as error:
            Row.failed(f"{name}, values", error).say()
            continue
        names = ("output", "query's gradient", "key's", "value's")
        Row(f"{name}, values", "bfloat16 against float64 math, relative", dict(zip(names, far, strict=True))).say()


def look_time(scene: Scene) -> None:
    """Time each at the sizes of `CASES`, forward and backward."""
    device = torch.device(scene.device)
    for tokens, longest, dtype in CASES if scene.on_gpu else ((256, 64, torch.float32),):
        lengths = lengths_to(tokens, longest)
        tensors = inputs(tokens, device, dtype)
        figures: dict[str, float | int | str] = {}
        for name, make in WAYS.items():
            try:
                forward, both, most = milliseconds(make(lengths, device), tensors, 10 if scene.on_gpu else 2)
            except Exception as error:
                figures[name] = Row.failed(name, error).seen
                continue
            figures |= {f"{name} forward, ms": forward, f"{name} both, ms": both, f"{name} peak, GiB": most}
        padded = sum(rows * columns for rows, columns in PackedSequences.of(lengths, None, device).grids) / tokens
        figures["slots of grids to tokens"] = padded
        Row(f"attention, {tokens} tokens in {len(lengths)} up to {max(lengths)}", f"{dtype}, GQA 14:2", figures).say()
