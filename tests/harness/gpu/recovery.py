"""Memory on the GPU when a rank restarts, as it does in recovery."""

from __future__ import annotations

import gc
import time
import weakref

import torch

from actors.megatron.rank import TrainerRank
from slime_events.core.training.train_batch import TrainBatch
from tests.harness.gpu.report import Row
from tests.harness.gpu.scene import (
    GIB,
    LARGE,
    MIDDLE,
    MIXTURE,
    Scene,
    allocated,
    forget_peak,
    lengths_to,
    make_batch,
    one_rank,
    peak,
)

TIMES = 3


def look(scene: Scene) -> None:
    """Make steps, then `reset`, several times: of the large model, and of a mixture of experts."""
    for name, vocabulary in (("large", LARGE if scene.on_gpu else MIDDLE), ("mixture", MIXTURE)):
        _reset(scene, name, make_batch(lengths_to(2048, 512), vocabulary["vocab_size"]))


def _reset(scene: Scene, name: str, batch: TrainBatch) -> None:
    model = scene.model(name)
    forget_peak()
    with one_rank(model, bf16=scene.on_gpu, optimizer_digest="off") as rank:
        built = allocated()
        rank.train(batch)
        figures: dict[str, float | int | str] = {"built, GiB": built, "stepped, GiB": allocated()}
        Row(f"memory of a rank, {name}", "built, and after its first step", figures).say()
        for number in range(TIMES):
            old = weakref.ref(rank.trainee.model)
            forget_peak()
            start = time.perf_counter()
            rank.reset()
            seconds, most = time.perf_counter() - start, peak()
            alive, after = old() is not None, allocated()
            rank.train(batch)
            gc.collect()
            figures = {
                "after, GiB": after,
                "at most in reset, GiB": most,
                "after a step and gc, GiB": allocated(),
                "seconds": seconds,
            }
            Row(f"reset {number + 1}, {name}", f"the old model is {'still alive' if alive else 'gone'}", figures).say()
        if scene.on_gpu and name == "large":
            _out_of_memory(rank, batch)


def _out_of_memory(rank: TrainerRank, batch: TrainBatch) -> None:
    """Make a step with too little memory, then one with enough."""
    forget_peak()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + GIB / 4) / whole)
    try:
        rank.train(batch)
        seen = "enough memory"
    except Exception as error:
        seen = f"{type(error).__module__}.{type(error).__name__}"
    torch.cuda.set_per_process_memory_fraction(1.0)
    try:
        norm = rank.train(batch).metrics["grad_norm"]
        seen += "; the next step, with memory, is trained"
    except Exception as error:
        norm, seen = 0.0, f"{seen}; the next step: {Row.failed('', error).seen}"
    Row("a step without memory", seen, {"gradient norm": norm, "allocated, GiB": allocated()}).say()
