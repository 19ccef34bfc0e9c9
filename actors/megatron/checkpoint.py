"""Trainer checkpoints: model, optimizer and schedule in Megatron's torch_dist format, complete or not there at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingException
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as write_state

from actors.megatron.cpu import stand_in
from actors.megatron.optimizer import follow_weights
from actors.megatron.sharded_state import is_sharded, load_sharded_state, shard_views, sharded_state
from actors.megatron.trainee import Critic, Trainee
from schemas.errors import CheckpointMismatch, TrainerError
from slime_events.core.config.trainer import TrainerSettings
from storage.object_store import fsync

MARK = "trainer.json"
CRITIC = "critic"
"""Folder in a checkpoint that holds a critic, where there is one."""


class InProcessWriter(TorchDistSaveShardedStrategy):  # type: ignore[misc]  # Megatron's class is not typed
    """Megatron's torch_dist format, written by torch in this process.

    Megatron's own writer forks the trainer and waits without a deadline for its children and for a spawned queue
    server; a child that dies leaves the rank hanging.
    """

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """Collective; returns when this rank's file is on disk."""
        flat, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        planner = MCoreSavePlanner(dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False)
        writer = FileSystemWriter(checkpoint_dir, single_file_per_rank=True, sync_files=True)
        write_state(mcore_to_pyt_state_dict(flat, False), storage_writer=writer, planner=planner)


def is_checkpoint(folder: str | Path) -> bool:
    """Whether the folder holds a complete trainer checkpoint."""
    return (Path(folder) / MARK).is_file()


def save(trainee: Trainee, folder: str | Path) -> None:
    """Write a checkpoint; collective. The folder appears under its name once everything in it is on disk.

    Raises TrainerError when it exists already. All ranks must see the same file system.
    """
    target = Path(folder)
    if target.exists():
        raise TrainerError(f"{target} exists already, and is never overwritten: remove it, or give another --save")
    partial = target.with_name(f".{target.name}.partial")
    if trainee.place.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        (partial / CRITIC if trainee.critic else partial).mkdir(parents=True)
    dist.barrier()
    by_layer = _is_partly_frozen(trainee)
    _save(trainee, partial, trainee.place.data, by_layer=by_layer)
    if trainee.critic is not None:
        _save(trainee.critic, partial / CRITIC, trainee.place.data, by_layer=False)
    dist.barrier()
    if trainee.place.rank == 0:
        mark = {
            "format": 2,  # 1: digests of several ranks are of each rank's part
            "optimizer_steps": trainee.scheduler.num_steps,
            "tensor_model_parallel_size": trainee.place.tensor.size(),
            "data_parallel_size": trainee.place.data.size(),
            "by_layer": by_layer,
        }
        (partial / MARK).write_text(json.dumps(mark, indent=1) + "\n")
        fsync(partial / MARK)
        os.rename(partial, target)
        fsync(target.parent)
    dist.barrier()


def load(trainee: Trainee, folder: str | Path, *, optimizer: bool = True, with_critic: bool = True) -> None:
    """Restore a checkpoint; collective. On the topology that saved it, training goes on bit for bit. optimizer: with
    the state of optimizer and schedule; else its weights alone, under those that are there.

    A critic that the checkpoint does not have stays as it is; with_critic: one that it has is loaded. Raises
    CheckpointMismatch for a folder that is no complete checkpoint or is one of another model.
    """
    by_layer = _mark(folder).get("by_layer", False)
    _load(trainee, Path(folder), trainee.settings, optimizer=optimizer, by_layer=by_layer)
    if with_critic and trainee.critic is not None and (Path(folder) / CRITIC).is_dir():
        load_critic(trainee, folder, optimizer=optimizer)


def load_critic(trainee: Trainee, folder: str | Path, *, optimizer: bool) -> None:
    """Restore the critic of a checkpoint alone; collective. Raises CheckpointMismatch where there is none."""
    _mark(folder)
    if not (Path(folder) / CRITIC).is_dir():
        raise CheckpointMismatch(f"{folder} holds no critic: give --critic-load a checkpoint of a run that had one")
    if trainee.critic is not None:
        _load(trainee.critic, Path(folder) / CRITIC, trainee.settings, optimizer=optimizer, by_layer=False)


def _mark(folder: str | Path) -> dict[str, Any]:
    if not Path(folder).is_dir():
        raise CheckpointMismatch(f"{folder} is not there: it was removed (--keep-checkpoints), or never written")
    if not is_checkpoint(folder):
        raise CheckpointMismatch(
            f"{folder} is no complete trainer checkpoint ({MARK} is missing): remove it, and an older one is taken"
        )
    try:
        mark: dict[str, Any] = json.loads((Path(folder) / MARK).read_text())
    except ValueError as error:
        raise CheckpointMismatch(f"{folder} does not fit the model: {error}") from error
    return mark


def _save(part: Trainee | Critic, folder: Path, replicas: dist.ProcessGroup, *, by_layer: bool) -> None:
    """replicas: what all of them hold is written once, a share of it by each."""
    with stand_in():
        state = _state(part, loading=False, by_layer=by_layer)
        writer = FullyParallelSaveStrategyWrapper(InProcessWriter("torch_dist", 1), replicas)
        dist_checkpointing.save(state, str(folder), sharded_strategy=writer)


def _load(part: Trainee | Critic, folder: Path, settings: TrainerSettings, *, optimizer: bool, by_layer: bool) -> None:
    with stand_in():
        try:
            wanted = _state(part, loading=True, by_layer=by_layer)
            views = shard_views(wanted["optimizer"])
            state = dist_checkpointing.load(wanted if optimizer else {"model": wanted["model"]}, str(folder))
        except CheckpointException as error:  # of torch: some ranks' errors in one
            reasons = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items()))
            raise CheckpointMismatch(f"{folder} does not fit the model: {reasons}") from error
        except (CheckpointingException, KeyError, ValueError) as error:
            raise CheckpointMismatch(f"{folder} does not fit the model: {error}") from error
        part.model.module.load_state_dict(state["model"])
        if not optimizer:
            follow_weights(part.optimizer)
            return
        if settings.optimizer == "adam":
            # Megatron leaves the common step count out while it is 0.
            inner = state["optimizer"].get("optimizer", state["optimizer"])
            inner["state"].setdefault("common_step", torch.zeros(()))
        # What a group has from the settings: learning rates, betas, weight decay.
        own = [
            {name: value for name, value in group.items() if name not in ("params", "step")}
            for group in part.optimizer.param_groups
        ]
        if is_sharded(part.optimizer):
            load_sharded_state(part.optimizer, state["optimizer"], views)
        else:
            part.optimizer.load_state_dict(state["optimizer"])
        for group, rates in zip(part.optimizer.param_groups, own, strict=True):
            group |= rates
    # The settings of this run rule rates and schedule; the checkpoint says only how far they are. A branch may have
    # others than the run that saved it.
    part.scheduler.num_steps = 0
    part.scheduler.step(state["scheduler"]["num_steps"])


def _is_partly_frozen(trainee: Trainee) -> bool:
    return not all(parameter.requires_grad for parameter in trainee.model.parameters())


def _state(part: Trainee | Critic, *, loading: bool, by_layer: bool) -> dict[str, Any]:
    """by_layer: each layer's tensors have names of their own. Else those of all layers are one tensor, of which the
    optimizer's state has to have all layers.
    """
    # Megatron writes this run's process groups into it.
    metadata = {
        "chained_optim_avoid_prefix": True,
        "non_homogeneous_layers": by_layer,
    }
    model = part.model.module.sharded_state_dict(metadata=metadata)
    if is_sharded(part.optimizer):
        optimizer = sharded_state(part.optimizer, model)
    else:
        optimizer = part.optimizer.sharded_state_dict(model, is_loading=loading, metadata=metadata)
    return {"model": model, "optimizer": optimizer, "scheduler": part.scheduler.state_dict()}
