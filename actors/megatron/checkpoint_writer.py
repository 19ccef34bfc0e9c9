"""`InProcessWriter`: writes Megatron's torch_dist format in two parts; the long part needs no other rank."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter

COPY_AHEAD = 10_000_000
"""Bytes that torch copies from a GPU ahead of writing. The copies use the current stream, which in another thread may
belong to another GPU.
"""


class InProcessWriter(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # Megatron's class is not typed
    """Writes Megatron's torch_dist format with torch in this process.

    Megatron's own writer forks the trainer and waits without a deadline for its children and for a spawned queue
    server, so that the rank hangs if a child dies.
    """

    def __init__(self, *, copied: bool) -> None:
        """copied: copy the state to the host first, so that training can continue during the write."""
        super().__init__("torch_dist", 1)
        self._copied = copied

    def async_save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> AsyncRequest:
        """Plan what each rank writes; collective.

        The request's function writes this rank's file to disk. Its first finalize function, which is collective, makes
        the files of all ranks a checkpoint.
        """
        flat, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        if self._copied:
            for shards in flat.values():
                for shard in shards:
                    if isinstance(shard, ShardedTensor):
                        shard.data = _on_host(shard.data)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
        state = mcore_to_pyt_state_dict(flat, False)
        rank, everyone = dist.get_rank(), [None] * dist.get_world_size()
        planner = MCoreSavePlanner(dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False)
        ahead = 0 if self._copied else COPY_AHEAD
        writer = FileSystemWriter(checkpoint_dir, sync_files=True, per_thread_copy_ahead=ahead)
        planner.set_up_planner(state_dict=state, storage_meta=writer.storage_meta(), is_coordinator=rank == 0)
        writer.set_up_storage_writer(rank == 0)
        dist.all_gather_object(everyone, writer.prepare_local_plan(planner.create_local_plan()))
        plans, metadata = planner.create_global_plan(everyone)  # the same on each rank
        plan = planner.finish_plan(writer.prepare_global_plan(plans)[rank])
        written: list[Any] = []

        def write() -> None:
            written.extend(writer.write_data(plan, planner).wait())

        def finish() -> None:
            results: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(results, written)
            if rank == 0:
                writer.finish(metadata, results)

        return AsyncRequest(write, (), [finish])


def _on_host(tensor: Tensor) -> Tensor:
    """Return a copy that later steps do not change. A copy from a GPU may still be in progress."""
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.clone(memory_format=torch.contiguous_format)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
