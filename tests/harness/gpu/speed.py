"""Seconds, tokens a second and memory of a step of a 0.5B model; where the time goes; the alternatives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

from actors.megatron.attention import PackedSequences
from actors.megatron.cpu import stand_in
from actors.megatron.rank import TrainerRank
from slime_events.core.run.process_environment import rank_environment
from slime_events.core.training.train_batch import TrainBatch
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import (
    GIB,
    LARGE,
    MIDDLE,
    Scene,
    allocated,
    forget_peak,
    lengths_to,
    make_batch,
    one_rank,
    peak,
    settings_of,
    synchronize,
)

CHUNKED = {"log_probs_chunk_size": 1024, "recompute_loss_function": True}
Figures = dict[str, float | int | str]


def batch_of(scene: Scene, tokens: int, longest: int = 2048) -> TrainBatch:
    """Return one packed micro batch of `tokens` tokens; few on the CPU."""
    tokens, longest = (tokens, longest) if scene.on_gpu else (tokens // 64, max(32, longest // 64))
    vocabulary = (LARGE if scene.on_gpu else MIDDLE)["vocab_size"]
    return make_batch(lengths_to(tokens, longest, tokens), vocabulary)


@contextmanager
def large_rank(scene: Scene, title: str, tokens: int, **more: Any) -> Iterator[TrainerRank]:
    """Yield a rank of the large model with micro batches of `tokens` tokens and no digest of the optimizer in a step.

    If memory does not suffice, a row of that title says so.
    """
    settings = {"bf16": scene.on_gpu, "optimizer_digest": "off", "max_tokens_per_gpu": tokens, **more}
    try:
        with one_rank(scene.model("large"), **settings) as rank:
            yield rank
    except torch.OutOfMemoryError as error:
        Row(title, f"out of memory: {str(error)[:160]}", {"peak, GiB": peak()}).say()


def timed_steps(rank: TrainerRank, batch: TrainBatch, steps: int = 4) -> tuple[float, dict[str, float]]:
    """Return (median seconds of a step after a first, metrics of the last)."""
    seconds, metrics = [], {}
    for number in range(steps):
        synchronize()
        start = time.perf_counter()
        metrics = rank.train(batch).metrics
        synchronize()
        if number:
            seconds.append(time.perf_counter() - start)
    return sorted(seconds)[len(seconds) // 2], metrics


def look_steps(scene: Scene) -> None:
    """Sizes of the packed micro batch, with all logits at once and in chunks."""
    for tokens in (8192, 16_384, 32_768):
        for name, more in (("all logits at once", {}), ("chunks of 1024, recomputed", CHUNKED)):
            _step(scene, f"step, {tokens} tokens, {name}", tokens, **more)
    _step(scene, "step, 8192 tokens, float32, in chunks", 8192, **CHUNKED, bf16=False)


def look_deterministic(scene: Scene) -> None:
    """A step with `--deterministic-mode`, for the price of it."""
    os.environ.update(rank_environment(settings_of(scene.folder, deterministic_mode=True)))
    _step(scene, "step, 8192 tokens, --deterministic-mode, in chunks", 8192, **CHUNKED, deterministic_mode=True)


def _step(scene: Scene, name: str, tokens: int, *, longest: int = 2048, **more: Any) -> None:
    batch = batch_of(scene, tokens, longest)
    with large_rank(scene, name, tokens, **more) as rank:
        forget_peak()
        seconds, metrics = timed_steps(rank, batch)
        figures: Figures = {"step, s": seconds, "tokens/s": round(batch.tokens / seconds), "peak, GiB": peak()}
        parts = ("seconds_forward_backward", "seconds_gradients", "seconds_optimizer")
        figures |= {part: metrics[part] for part in parts if part in metrics}
        Row(name, f"{len(batch.samples)} samples", figures).say()


def look_digest(scene: Scene) -> None:
    """Time what `--optimizer-digest every` adds to a step, and the export of weights."""
    batch = batch_of(scene, 8192)
    with one_rank(scene.model("large"), bf16=scene.on_gpu, optimizer_digest="every") as rank:
        seconds, metrics = timed_steps(rank, batch, 3)
        start = time.perf_counter()
        count = sum(len(data) for *_, data in rank.export_bytes())
        export = time.perf_counter() - start
        hashed = sum(t.nbytes for t in _state(rank))
    figures: Figures = {
        "step, s": seconds,
        "of it the digest, s": metrics["seconds_digest"],
        "hashed, GiB": hashed / GIB,
        "weights to the host, s": export,
        "weights, GiB": count / GIB,
    }
    Row("--optimizer-digest every", "8192 tokens a step", figures).say()


def _state(rank: TrainerRank) -> Iterator[torch.Tensor]:
    for part in rank.trainee.optimizer.chained_optimizers:
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                yield parameter
                yield from (v for v in part.optimizer.state[parameter].values() if isinstance(v, torch.Tensor))


def look_adam(scene: Scene) -> None:
    """`foreach` (torch's default on CUDA) and `fused` AdamW: the optimizer's seconds and memory."""
    batch = batch_of(scene, 2048)
    built: list[Any] = []
    for fused in (False, True):
        with one_rank(scene.model("large"), bf16=scene.on_gpu, optimizer_digest="off") as rank:
            for part in rank.trainee.optimizer.chained_optimizers:
                for group in part.optimizer.param_groups:
                    built.append(group["fused"])
                    group["fused"] = fused
            rank.train(batch)
            seconds, mosts = [], []
            for _ in range(4):
                forget_peak()
                before = torch.cuda.memory_allocated() if scene.on_gpu else 0
                start = time.perf_counter()
                with stand_in():
                    rank.trainee.optimizer.step()
                synchronize()
                seconds.append(time.perf_counter() - start)
                mosts.append(peak() - before / GIB)
        figures: Figures = {"optimizer step, ms": 1e3 * sorted(seconds)[1], "more memory, GiB": max(mosts)}
        seen = f"on the weights of 0.5B; a rank is built with fused {built[0]}"
        Row(f"AdamW, {'fused' if fused else 'foreach'}", seen, figures).say()


def look_fusions(scene: Scene) -> None:
    """Megatron's fusions, each alone: one that has no kernel here is refused."""
    names = ("bias_activation_fusion", "apply_rope_fusion", "gradient_accumulation_fusion")
    for name in ("none", *names, "none"):
        flags = {"megatron": {fusion: fusion == name for fusion in names}}
        try:
            _step(scene, f"step, 8192 tokens up to 512, fusion: {name}", 8192, longest=512, **CHUNKED, **flags)
        except Exception as error:
            Row.failed(f"fusion {name}", error).say()


def look_logits(scene: Scene) -> None:
    """Memory of log-probs without a gradient, beyond what the model takes."""
    for tokens in (8192, 32_768):
        batch = batch_of(scene, tokens)
        for name, more in (("all logits at once", {}), ("chunks of 1024", {"log_probs_chunk_size": 1024})):
            title = f"log-probs, {tokens} tokens, {name}"
            with large_rank(scene, title, tokens, **more) as rank:
                trainee = rank.trainee
                forget_peak()
                before, start = allocated(), time.perf_counter()
                trainee.scores_of(trainee.model, batch.samples, range(len(batch.samples)), 1.0)
                synchronize()
                figures: Figures = {"more at most, GiB": peak() - before, "seconds": time.perf_counter() - start}
                Row(title, "without a gradient", figures).say()


def look_profile(scene: Scene) -> None:
    """A step of many short samples and one of few long ones, by torch's profiler."""
    for name, tokens, longest in (("8192 tokens, up to 512", 8192, 512), ("32768 tokens, up to 8192", 32_768, 8192)):
        batch = batch_of(scene, tokens, longest)
        title = f"profile, {name}, {len(batch.samples)} samples"
        with large_rank(scene, title, tokens, **CHUNKED) as rank:
            say_profile(scene, rank, batch, title)


def say_profile(scene: Scene, rank: TrainerRank, batch: TrainBatch, title: str) -> None:
    """Profile a step after two others."""
    for _ in range(2):
        rank.train(batch)
    synchronize()
    with profile(activities=_activities(scene)) as seen:
        start = time.perf_counter()
        rank.train(batch)
        synchronize()
        wall = time.perf_counter() - start
    _say_profile(title, seen, wall)


def _activities(scene: Scene) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if scene.on_gpu else [])]


def _say_profile(name: str, seen: Any, wall: float) -> None:
    """Rows: shares of the GPU's time by kind of kernel, calls that wait for the GPU, and the longest kernels."""
    events = seen.key_averages()
    kernels = {e.key: e.self_device_time_total / 1e6 for e in events if e.self_device_time_total > 0}
    on_device = {
        e.key: (e.self_device_time_total / 1e6, e.count)
        for e in events
        if str(e.device_type).endswith("CUDA") and e.self_device_time_total > 0 and "#" not in e.key  # not a kernel
    }
    busy = sum(seconds for seconds, _ in on_device.values()) or sum(kernels.values())
    counts = {e.key: e.count for e in events}
    figures: Figures = {"wall, s": wall, "GPU busy, s": busy, "share busy": busy / wall}
    for kind, words in KINDS.items():
        part = sum(seconds for key, (seconds, _) in on_device.items() if any(word in key for word in words))
        figures[f"{kind}, share of GPU time"] = part / max(busy, 1e-9)
    Row(name, "where the time goes", figures).say()
    waits = {key: counts[key] for key in WAITS if key in counts}
    Row(f"{name}: waits", "calls", dict(waits)).say()
    longest = sorted(on_device.items(), key=lambda item: -item[1][0])[:10]
    figures = {key[:90]: f"{1e3 * seconds:.1f} ms in {count}" for key, (seconds, count) in longest}
    Row(f"{name}: longest kernels", "of the GPU", figures).say()


KINDS: dict[str, Sequence[str]] = {
    "attention": ("flash", "fmha", "attention", "sdpa"),
    "matrix products": ("gemm", "nvjet", "cutlass", "cublas", "xmma"),
    "copies to the host": ("DtoH",),
    "copies on the device": ("DtoD", "copy_kernel", "direct_copy"),
    "gathers": ("index", "gather", "scatter"),
}
WAITS = (
    "cudaStreamSynchronize",
    "cudaDeviceSynchronize",
    "cudaEventSynchronize",
    "aten::item",
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "Memcpy DtoH (Device -> Pageable)",
    "Memcpy HtoD (Pageable -> Device)",
    "cudaLaunchKernel",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_attention_math",
)


@contextmanager
def rope_lengths_on(device: str) -> Iterator[None]:
    """Let Megatron's RoPE read the ends of sequences from that device."""
    of = PackedSequences.of.__func__  # type: ignore[attr-defined]

    def placed(cls: Any, *arguments: Any) -> Any:
        packed = of(cls, *arguments)
        packed.cu_seqlens_q = packed.cu_seqlens_kv = packed.cu_seqlens_q.to(device)
        return packed

    with patch.object(PackedSequences, "of", classmethod(placed)):
        yield


def look_rope(scene: Scene) -> None:
    """A step with the ends of sequences on the device, and on the host."""
    for tokens, longest in ((8192, 256), (32_768, 2048)):
        figures: Figures = {}
        batch = batch_of(scene, tokens, longest)
        title = f"RoPE's lengths, {tokens} tokens in {len(batch.samples)} samples"
        with large_rank(scene, title, tokens, **CHUNKED) as rank:
            for place in (scene.device, "cpu", scene.device, "cpu"):
                with rope_lengths_on(place):
                    seconds, _ = timed_steps(rank, batch)
                    fastest = figures.get(f"on {place}, step, s", seconds)
                    figures[f"on {place}, step, s"] = min(seconds, float(fastest))
            Row(title, "fastest of two medians", figures).say()
