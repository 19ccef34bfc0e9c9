"""`sized_by_total`: the key-value cache of an engine that shares its GPU, from the GPU's total memory.

SGLang 0.5.23 takes its share of the memory that is free before it loads a model. So the cache would be smaller if a
trainer rank is already loaded, and smaller still if a rank loads meanwhile. Here the share is of the total memory, and
the order of starts does not matter:

    cache = share x total - memory that the engine itself has allocated (its weights)

The engine's own overhead (the CUDA context, graphs, working memory of a step) is extra, as with SGLang.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from schemas.doc import doc
from schemas.errors import EngineError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

SHARE = "SLIME_EVENTS_SHARE_OF_GPU"
"""Environment variable of an engine that shares its GPU: the share of the GPU's total memory for weights and cache."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device [bytes]."""

    total: int
    free: int
    own: Annotated[int, doc("Allocated by this process through torch, after its weights are loaded.")]


def cache_bytes(share: float, memory: DeviceMemory) -> int:
    """Return the size of the key-value cache. Raises EngineError if the share is too small for it, or is not free."""
    budget = int(share * memory.total) - memory.own
    flag = f"--sglang-mem-fraction-static {share:g}"
    if budget <= 0:
        raise EngineError(
            f"{flag}: the engine's share is {_gib(share * memory.total)} of the GPU's {_gib(memory.total)}, and its "
            f"weights take {_gib(memory.own)}: nothing is left for its key-value cache. Give it a larger share"
        )
    if budget > memory.free:
        raise EngineError(
            f"{flag}: the engine's key-value cache needs {_gib(budget)}, but only {_gib(memory.free)} of the GPU's "
            f"{_gib(memory.total)} are free: other processes, such as the trainer rank, take too much. Give the engine "
            "a smaller share, or make the rank smaller (--max-tokens-per-gpu, --recompute-granularity)"
        )
    return budget


def sized_by_total(profile: Callable[..., int], configurator: KVCacheConfigurator, pre_model_load_memory: float) -> int:
    """Around hook of `KVCacheConfigurator._profile_available_bytes`: return the bytes for the cache.

    SGLang computes free - baseline x (1 - fraction), and subtracts the memory that special models need. It gets the
    baseline (`pre_model_load_memory`, GiB) at which the result is `cache_bytes`.
    """
    memory = read_memory(configurator.gpu_id)
    budget = cache_bytes(float(os.environ[SHARE]), memory)
    return profile(configurator, (memory.free - budget) / GIB / (1 - static_fraction()))


def static_fraction() -> float:
    """Return SGLang's own setting, in one of its processes."""
    from sglang.srt.runtime_context import get_schedule

    return float(get_schedule().mem_fraction_static)


def read_memory(device: int) -> DeviceMemory:
    """Return the memory of a CUDA device, in a process that has loaded its weights. Frees garbage first."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, torch.cuda.memory_reserved(device))


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
