"""A rank that gives its memory back between two steps, as `--colocate --offload-train` has it."""

from __future__ import annotations

import gc
import os
import time

import psutil
import torch

from actors.megatron.rank import TrainerRank
from storage.weights.stored_version import digest_of
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import GIB, LARGE, MIDDLE, Scene, lengths_to, make_batch, one_rank, synchronize

STEPS = 3
Bits = list[tuple[str, str | None]]


def used(scene: Scene) -> float:
    """Return the GiB that are in use on the whole device; on the CPU those of this process."""
    if not scene.on_gpu:
        return psutil.Process(os.getpid()).memory_info().rss / GIB
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def look(scene: Scene) -> None:
    """Make steps with a rest after each, and without: memory that others can use meanwhile, time, and equal bits."""
    way = {"bf16": True, "deterministic_mode": True} if scene.on_gpu else {}
    tokens, vocabulary = (8192, LARGE["vocab_size"]) if scene.on_gpu else (2048, MIDDLE["vocab_size"])
    outcomes = []
    for rests in (False, True):
        with one_rank(scene.model("large"), use_dynamic_batch_size=True, **way) as rank:
            outcomes.append(_steps(scene, rank, tokens, vocabulary, rests=rests))
        del rank
        gc.collect()
    alike = "the same to the bit" if outcomes[0] == outcomes[1] else "others"
    Row("a rank that rests: bits", f"weights and optimizer of {STEPS} steps are {alike}").say()


def _steps(scene: Scene, rank: TrainerRank, tokens: int, vocabulary: int, *, rests: bool) -> Bits:
    bits: Bits = []
    awake, resting, seconds = list[float](), list[float](), list[tuple[float, float]]()
    for step in range(STEPS):
        result = rank.train(make_batch(lengths_to(tokens, 2048), vocabulary, step))
        bits.append((digest_of(rank.export_bytes()), result.optimizer_digest))
        if not rests:
            continue
        synchronize()
        awake.append(used(scene))
        begun = time.perf_counter()
        rank.rest()
        synchronize()
        rested = time.perf_counter()
        resting.append(used(scene))
        rank.wake()
        synchronize()
        seconds.append((rested - begun, time.perf_counter() - rested))
    if rests:
        figures: dict[str, float | int | str] = {
            "awake, GiB": max(awake),
            "resting, GiB": max(resting),
            "rest, s": min(rest for rest, _ in seconds),
            "wake, s": min(wake for _, wake in seconds),
        }
        Row("a rank that rests", "memory of the device" if scene.on_gpu else "memory of the process", figures).say()
    return bits
