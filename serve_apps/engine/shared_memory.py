"""`sized_by_total`: the key-value cache of an engine that shares its GPU, from the GPU's total memory.

SGLang 0.5.23 takes its share of the memory that is free before it loads a model: less beside a trainer rank that is
loaded than before one, and less again where a rank loads meanwhile. Here the share is of all memory, whoever is first:

    cache = share x total - what the engine itself has allocated (its weights)

The engine's own overhead (the CUDA context, graphs, what a step needs) comes on top, as with SGLang.
"""

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schemas.errors import EngineError

SHARE = "SLIME_EVENTS_SHARE_OF_GPU"
"""Environment variable of an engine that shares its GPU: the part of all its memory for weights and cache."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes. own: allocated by this process through torch, once its weights are loaded."""

    total: int
    free: int
    own: int


def cache_bytes(share: float, memory: DeviceMemory) -> int:
    """Of the key-value cache. Raises EngineError where the share is too small for it, or is not free."""
    budget = int(share * memory.total) - memory.own
    flag = f"--sglang-mem-fraction-static {share:g}"
    if budget <= 0:
        raise EngineError(
            f"{flag}: {_gib(share * memory.total)} of the GPU's {_gib(memory.total)} are the engine's, and its weights "
            f"take {_gib(memory.own)}: nothing is left for its key-value cache. Give it a larger share"
        )
    if budget > memory.free:
        raise EngineError(
            f"{flag}: the engine's key-value cache is to have {_gib(budget)}, and {_gib(memory.free)} of the GPU's "
            f"{_gib(memory.total)} are free: others on it, such as the trainer rank, take too much. Give the engine a "
            "smaller share, or make the rank smaller (--max-tokens-per-gpu, --recompute-granularity)"
        )
    return budget


def sized_by_total(profile: Callable[..., int], configurator: Any, pre_model_load_memory: float) -> int:
    """Around hook of `KVCacheConfigurator._profile_available_bytes`: bytes for the cache.

    SGLang computes free - baseline x (1 - fraction), and takes from it what special models need. It is given the
    baseline (`pre_model_load_memory`, GiB) at which that is `cache_bytes`.
    """
    memory = read_memory(configurator.gpu_id)
    wanted = cache_bytes(float(os.environ[SHARE]), memory)
    return profile(configurator, (memory.free - wanted) / GIB / (1 - static_fraction()))


def static_fraction() -> float:
    """SGLang's own setting, in one of its processes."""
    from sglang.srt.runtime_context import get_schedule

    return float(get_schedule().mem_fraction_static)


def read_memory(device: int) -> DeviceMemory:
    """Of a CUDA device, in a process that has loaded its weights; what these left behind is freed first."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(total, free, torch.cuda.memory_reserved(device))


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
