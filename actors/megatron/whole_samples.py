"""`whole_samples`: Megatron's groups as a user's functions find them, whose samples are whole on each rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state


@contextmanager
def whole_samples() -> Iterator[None]:
    """Let `megatron.core.mpu` say that there is one context parallel rank.

    A function written for slime cuts samples by these ranks, and sums over them. Here each of them has whole samples,
    so the function must do what it does in slime without context parallelism. A group of context parallel and other
    ranks becomes the group of the others.
    """
    if parallel_state.get_context_parallel_world_size() == 1:
        yield
        return
    alone = _of_one_context_rank()
    kept = {name: getattr(parallel_state, name) for name in alone}
    _set(alone)
    try:
        yield
    finally:
        _set(kept)


def _of_one_context_rank() -> dict[str, Any]:
    """Return Megatron's variables with the values that they have without context parallelism."""
    world = dist.group.WORLD
    assert world is not None, "ranks have joined"
    return {
        "_CONTEXT_PARALLEL_GROUP": _alone(world),
        "_CONTEXT_PARALLEL_GLOBAL_RANKS": [dist.get_rank()],
        "_TENSOR_AND_CONTEXT_PARALLEL_GROUP": parallel_state.get_tensor_model_parallel_group(),
        "_DATA_PARALLEL_GROUP_WITH_CP": parallel_state.get_data_parallel_group(),
        "_TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": parallel_state.get_tensor_and_data_parallel_group(),
    }


@lru_cache(maxsize=1)
def _alone(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return a group of this rank alone, made once after each `join`."""
    group: dist.ProcessGroup = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    return group


def _set(variables: dict[str, Any]) -> None:
    for name, value in variables.items():
        setattr(parallel_state, name, value)
