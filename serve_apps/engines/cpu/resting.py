"""`give_back`: a resting engine on a CPU gives the memory of its weights and of its key-value cache back.

SGLang 0.5.23 does so on accelerators only. The weights come back when a version is loaded, the cache when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from schemas.errors import EngineError
from slime_events.core.machine.resting_memory import discard

if TYPE_CHECKING:
    from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

BUFFERS = ("k_buffer", "v_buffer", "kv_buffer")
"""Attributes of SGLang's pools with a tensor of keys or values for each layer."""


def give_back(result: object, updater: SchedulerWeightUpdaterManager, *_: object, **__: object) -> None:
    """After hook of SGLang's `release_memory_occupation`, in the scheduler. Raises EngineError for an unknown cache."""
    runner = updater.tp_worker.model_runner
    cache = list(cache_tensors(runner.token_to_kv_pool))
    if not cache:
        raise EngineError(f"cannot rest: {type(runner.token_to_kv_pool).__name__} has no {' or '.join(BUFFERS)}")
    discard([*runner.model.parameters(), *cache])


def cache_tensors(pool: object) -> Iterator[torch.Tensor]:
    """Yield the keys and values of a pool of SGLang."""
    for name in BUFFERS:
        yield from getattr(pool, name, None) or ()
