"""`PartStrategy`: loads Megatron's torch_dist format, and reads only a rank's part of each tensor that a file has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.strategies import torch as megatron_strategies
from megatron.core.dist_checkpointing.strategies.cached_metadata_filesystem_reader import CachedMetadataFileSystemReader
from megatron.core.dist_checkpointing.strategies.torch import TorchDistLoadShardedStrategy
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from actors.megatron.formats.weights import tensor_memory
from schemas.errors import CheckpointMismatch
from storage.weights.file_runs import Block, Box, RunReader, runs_of
from storage.weights.saved_tensor import locate_tensor


class PartReader(CachedMetadataFileSystemReader):  # type: ignore[misc]  # Megatron's class is not typed
    """Reads parts of tensors. torch's own reader reads each tensor of a file as a whole."""

    def __init__(self, folder: str | Path, cache_metadata: bool = True) -> None:
        """Open nothing yet. cache_metadata: always on; the name is Megatron's."""
        super().__init__(folder)
        self._folder, self._reader = Path(folder), RunReader()

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors that were read so far."""
        return self._reader.bytes_read

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan names. Raises CheckpointMismatch if a file is damaged."""
        parts = [item for item in plan.items if item.type is LoadItemType.TENSOR]
        try:
            for item in parts:
                self._read_part(item, planner)
        finally:
            self._reader.close()
        others = replace(plan, items=[item for item in plan.items if item.type is not LoadItemType.TENSOR])
        done: Future[None] = super().read_data(others, planner)
        return done

    def _read_part(self, item: ReadItem, planner: LoadPlanner) -> None:
        place = self.storage_data[item.storage_index]
        name, path = item.storage_index.fqn, self._folder / place.relative_path
        if place.transform_descriptors:
            raise CheckpointMismatch(f"{name} in {path} is compressed, which is not supported")
        saved = locate_tensor(path, place.offset, place.length)
        ends = (start + length for start, length in zip(item.storage_offsets, item.lengths, strict=True))
        box = Box(tuple(item.storage_offsets), tuple(ends))
        block = Block(Box.of(saved.shape), path, saved.start, saved.strides)
        part = torch.empty(box.shape, dtype=getattr(torch, saved.dtype))
        self._reader.fill(tensor_memory(part), runs_of([block], box, part.itemsize, f"{path}: {name}"))
        target = planner.resolve_tensor(item).detach()
        if target.shape != part.shape:
            raise CheckpointMismatch(f"{path}: {name} has shape {list(part.shape)}, not {list(target.shape)}")
        target.copy_(part)
        planner.commit_tensor(item, target)


class PartStrategy(TorchDistLoadShardedStrategy):  # type: ignore[misc]  # Megatron's class is not typed
    """Megatron's strategy with a `PartReader`."""

    def load(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> dict[str, Any]:
        """Load this rank's parts; collective."""
        theirs = megatron_strategies._get_filesystem_reader
        megatron_strategies._get_filesystem_reader = PartReader
        try:
            state: dict[str, Any] = super().load(sharded_state_dict, checkpoint_dir)
        finally:
            megatron_strategies._get_filesystem_reader = theirs
        return state
