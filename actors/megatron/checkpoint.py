"""Trainer checkpoints: model, optimizer and schedule in Megatron's torch_dist format, complete or not there at all."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException, save_config
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from torch.distributed.checkpoint.api import CheckpointException

from actors.megatron.checkpoint_writer import InProcessWriter
from actors.megatron.cpu import stand_in
from actors.megatron.optimizer import follow_weights
from actors.megatron.sharded_state import is_sharded, load_sharded_state, shard_views, sharded_state
from actors.megatron.trainee import Critic, Trainee
from schemas.errors import CheckpointMismatch, TrainerError
from schemas.text import raised_text
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.save_progress import SaveProgress, SaveState
from storage.object_store import fsync

MARK = "trainer.json"
CRITIC = "critic"
"""Folder in a checkpoint that holds a critic, where there is one."""


def is_checkpoint(folder: str | Path) -> bool:
    """Whether the folder holds a complete trainer checkpoint."""
    return (Path(folder) / MARK).is_file()


def save(trainee: Trainee, folder: str | Path) -> None:
    """Write a checkpoint; collective. The folder appears under its name once everything in it is on disk.

    Raises TrainerError when it exists already or cannot be written. All ranks must see the same file system.
    """
    pending = PendingCheckpoint(trainee, folder)
    pending.write()
    progress = pending.complete()
    if progress.state is not SaveState.SAVED:
        raise TrainerError(f"{folder} cannot be written: {progress.problem}")


class PendingCheckpoint:
    """A checkpoint of which this rank's files are to be written, or are being written."""

    def __init__(self, trainee: Trainee, folder: str | Path, *, copied: bool = False) -> None:
        """Collective: take down what there is to write. copied: to the host, so that training may go on meanwhile.
        Raises TrainerError when the folder exists already.
        """
        self._target = target = Path(folder)
        if target.exists():
            raise TrainerError(f"{target} exists already, and is never overwritten: remove it, or give another --save")
        self._partial = partial = target.with_name(f".{target.name}.partial")
        self._rank = trainee.place.rank
        self._written: Future[None] = Future()
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            (partial / CRITIC if trainee.critic else partial).mkdir(parents=True)
        dist.barrier()
        by_layer, replicas = _is_partly_frozen(trainee), trainee.place.data
        self._mark = {
            "format": 2,  # 1: digests of several ranks are of each rank's part
            "optimizer_steps": trainee.scheduler.num_steps,
            "tensor_model_parallel_size": trainee.place.tensor.size(),
            "data_parallel_size": replicas.size(),
            "by_layer": by_layer,
        }
        self._parts = {partial: _request(trainee, partial, replicas, by_layer=by_layer, copied=copied)}
        if trainee.critic is not None:
            folder = partial / CRITIC
            self._parts[folder] = _request(trainee.critic, folder, replicas, by_layer=False, copied=copied)

    def write_in_background(self) -> None:
        """`write` in a thread that the process does not wait for when it ends."""
        threading.Thread(target=self.write, name="checkpoint", daemon=True).start()

    def write(self) -> None:
        """Write this rank's files; they are on disk then. What goes wrong is told by `complete`."""
        try:
            for request in self._parts.values():
                request.async_fn(*request.async_fn_args)
        except Exception as error:  # of a disk, of torch's format
            self._written.set_exception(error)
        else:
            self._written.set_result(None)

    def complete(self, *, wait: bool = True) -> SaveProgress:
        """Make the files a checkpoint once all ranks have written theirs; collective, with one answer for all. wait:
        for this rank's own. Where a rank failed, the files are removed.
        """
        if not wait and not self._written.done():
            problem = None
        else:
            error = self._written.exception()
            problem = f"rank {self._rank}: {raised_text(error)}" if error else ""
        problems: list[str | None] = [problem] * dist.get_world_size()
        dist.all_gather_object(problems, problem)
        if None in problems:
            return SaveProgress(SaveState.WRITING)
        failed = next((one for one in problems if one), "") or self._publish()
        if failed and self._rank == 0:
            shutil.rmtree(self._partial, ignore_errors=True)
        return SaveProgress(SaveState.FAILED if failed else SaveState.SAVED, failed)

    def _publish(self) -> str:
        """Give the folder its name; what went wrong. Collective: what rank 0 cannot write is told to all."""
        problem = ""
        for request in self._parts.values():
            problem = self._problem_of(request.finalize_fns[0]) or problem
        if self._rank == 0 and not problem:
            problem = self._problem_of(self._seal)
        told = [problem]
        dist.broadcast_object_list(told, 0)
        return told[0]

    def _problem_of(self, call: Callable[[], None]) -> str:
        try:
            call()
        except OSError as error:
            return f"rank {self._rank}: {raised_text(error)}"
        return ""

    def _seal(self) -> None:
        for folder in self._parts:
            save_config(CheckpointingConfig("torch_dist", 1), str(folder))
        (self._partial / MARK).write_text(json.dumps(self._mark, indent=1) + "\n")
        for folder in reversed(self._parts):
            for path in folder.iterdir():
                if path.is_file() and path.suffix != ".distcp":  # which each rank has done
                    fsync(path)
            fsync(folder)
        os.rename(self._partial, self._target)
        fsync(self._target.parent)


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


def _request(
    part: Trainee | Critic, folder: Path, replicas: dist.ProcessGroup, *, by_layer: bool, copied: bool
) -> AsyncRequest:
    """replicas: what all of them hold is written once, a share of it by each."""
    with stand_in():
        state = _state(part, loading=False, by_layer=by_layer)
        writer = FullyParallelSaveStrategyWrapper(InProcessWriter(copied=copied), replicas)
        return dist_checkpointing.save(state, str(folder), sharded_strategy=writer, async_sharded_save=True)


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
