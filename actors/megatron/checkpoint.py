"""Trainer checkpoints: model, optimizer and schedule in Megatron's torch_dist format. A folder is always complete."""

import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.core import CheckpointingConfig, CheckpointingException, save_config
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from torch.distributed.checkpoint.api import CheckpointException

from actors.megatron.checkpoint_reader import PartStrategy
from actors.megatron.checkpoint_upload import CheckpointUpload, checkpoint_here
from actors.megatron.checkpoint_writer import InProcessWriter
from actors.megatron.cpu import stand_in
from actors.megatron.optimizer import follow_weights
from actors.megatron.sharded_state import (
    StepCounts,
    agree_on_steps,
    is_sharded,
    leave_out_empty_groups,
    load_sharded_state,
    load_whole_state,
    shard_views,
    sharded_state,
)
from actors.megatron.trained import Critic
from actors.megatron.trainee import Trainee
from actors.megatron.weights import is_expert, named_parameters
from actors.step.place import Axis, Place
from schemas.doc import doc
from schemas.errors import CheckpointMismatch, StorageError, TrainerError
from schemas.text import raised_text
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.training.save_progress import SaveProgress, SaveState
from storage.folders.places import is_remote
from storage.folders.remote import StoredFile
from storage.object_store import fsync
from storage.weights.folder_formats import MARK, FolderFormat, format_of

CRITIC = "critic"
"""Folder of the critic in a checkpoint."""

TENSORS = "tensors"
"""Key of the tensors of the optimizer in a state that is loaded: its parts and groups may be others than the saved."""


class Keys(NamedTuple):
    """The tensors that a checkpoint is divided into. The optimizer's state must have all elements of a tensor."""

    by_layer: Annotated[bool, doc("Each layer has its own tensors; if off, all layers form one tensor.")] = False
    by_expert: Annotated[bool, doc("As by_layer, for the optimizer's state of a layer's experts.")] = False

    @classmethod
    def of(cls, trainee: Trainee) -> Self:
        """Return the keys for the parameters that the ranks together train. Collective."""
        trained = {(is_expert(name), parameter.requires_grad) for name, parameter in named_parameters(trainee.model)}
        whole = set().union(*trainee.place.of_each_rank(trained))
        return cls(any(not learns for _, learns in whole), {(True, False), (True, True)} <= whole)


def is_checkpoint(folder: str | Path) -> bool:
    """Return whether the folder holds a complete trainer checkpoint."""
    return format_of(folder) is FolderFormat.OURS


def save(trainee: Trainee, folder: str | Path) -> None:
    """Write a checkpoint; collective. The folder appears under its name when all its files are on disk.

    folder: a path in a file system that all ranks share, or a new URL in an object store. Raises TrainerError if the
    folder exists or cannot be written.
    """
    pending = PendingCheckpoint(trainee, folder)
    pending.write()
    progress = pending.complete()
    if progress.state is not SaveState.SAVED:
        raise TrainerError(f"{folder} cannot be written: {progress.problem}")


class PendingCheckpoint:
    """A checkpoint that is planned or being written."""

    def __init__(self, trainee: Trainee, folder: str | Path, *, copied: bool = False) -> None:
        """Plan what each rank writes; collective. copied: copy the state to the host, so that training can continue.

        Raises TrainerError if the folder exists.
        """
        self._rank = trainee.place.rank
        self._upload = CheckpointUpload(str(folder), self._rank) if is_remote(str(folder)) else None
        self._target = target = Path(folder)
        if self._upload is None and target.exists():
            raise TrainerError(f"{target} exists already, and is never overwritten: remove it, or give another --save")
        partial = target.with_name(f".{target.name}.partial") if self._upload is None else self._upload.draft
        self._partial = partial
        self._written: Future[None] = Future()
        if self._rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        dist.barrier()
        if self._rank == 0 or self._upload is not None:  # each host has a draft of what is uploaded
            (partial / CRITIC if trainee.critic else partial).mkdir(parents=True, exist_ok=True)
        dist.barrier()
        self._uploaded: list[dict[str, StoredFile]] = [{}] * dist.get_world_size()
        keys = Keys.of(trainee)
        self._mark = {
            "format": 2,  # in format 1, digests of several ranks were per rank
            "optimizer_steps": trainee.scheduler.num_steps,
            "tensor_model_parallel_size": trainee.place.tensor.size(),
            "data_parallel_size": trainee.place.data.size(),
            "expert_model_parallel_size": trainee.place.size(Axis.EXPERT),
            **keys._asdict(),
            "trains_prediction": trainee.architecture.trains_prediction,
        }
        self._parts = {partial: _request(trainee, partial, trainee.place, keys, copied=copied)}
        if trainee.critic is not None:
            folder = partial / CRITIC
            self._parts[folder] = _request(trainee.critic, folder, trainee.place, Keys(), copied=copied)

    def write_in_background(self) -> None:
        """Call `write` in a daemon thread."""
        threading.Thread(target=self.write, name="checkpoint", daemon=True).start()

    def write(self) -> None:
        """Write this rank's files to disk, and upload them to a URL. `complete` reports an error."""
        try:
            for request in self._parts.values():
                request.async_fn(*request.async_fn_args)
            if self._upload is not None:
                self._upload.upload()
        except Exception as error:  # any error of the disk or of torch's format; `complete` reports it
            self._written.set_exception(error)
        else:
            self._written.set_result(None)

    def complete(self, *, wait: bool = True) -> SaveProgress:
        """If all ranks have written, publish the checkpoint or, if a rank failed, remove the files.

        Collective; all ranks get the same result. wait: wait until this rank has written.
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
        failed = next(filter(None, problems), "") or self._publish()
        if self._upload is not None or (failed and self._rank == 0):
            shutil.rmtree(self._partial, ignore_errors=True)
        return SaveProgress(SaveState.FAILED if failed else SaveState.SAVED, failed)

    def _publish(self) -> str:
        """Give the folder its name; return the problem, if any. Collective: all ranks get rank 0's problem."""
        problem = ""
        for request in self._parts.values():
            problem = self._problem_of(request.finalize_fns[0]) or problem
        if self._upload is not None:
            dist.all_gather_object(self._uploaded, self._upload.files)
        if self._rank == 0 and not problem:
            problem = self._problem_of(self._seal)
        shared = [problem]
        dist.broadcast_object_list(shared, 0)
        return shared[0]

    def _problem_of(self, call: Callable[[], None]) -> str:
        try:
            call()
        except (OSError, StorageError) as error:
            return f"rank {self._rank}: {raised_text(error)}"
        return ""

    def _seal(self) -> None:
        for folder in self._parts:
            save_config(CheckpointingConfig("torch_dist", 1), str(folder))
        (self._partial / MARK).write_text(json.dumps(self._mark, indent=1) + "\n")
        for folder in reversed(self._parts):
            for path in folder.iterdir():
                if path.is_file() and path.suffix != ".distcp":  # each rank has synced its own .distcp files
                    fsync(path)
            fsync(folder)
        if self._upload is not None:
            self._upload.complete(self._uploaded)
            return
        os.rename(self._partial, self._target)
        fsync(self._target.parent)


def load(trainee: Trainee, folder: str | Path, *, optimizer: bool = True, with_critic: bool = True) -> None:
    """Load a checkpoint; collective. On the same topology, training continues bit for bit; any other can load it too.

    optimizer: load the state of optimizer and schedule; if off, load only the weights. with_critic: load the
    checkpoint's critic; if the checkpoint has none, the critic is unchanged. folder: path or URL. Raises
    CheckpointMismatch if the folder is not a complete checkpoint or belongs to another model.
    """
    with checkpoint_here(folder) as local:
        _load_all(trainee, local, optimizer=optimizer, with_critic=with_critic)


def _load_all(trainee: Trainee, folder: Path, *, optimizer: bool, with_critic: bool) -> None:
    mark = _mark(folder)
    keys = Keys(**{name: mark.get(name, False) for name in Keys._fields})
    if (trains := trainee.architecture.trains_prediction) != mark.get("trains_prediction", False):
        raise CheckpointMismatch(
            f"{folder} was saved {'without' if trains else 'with'} enable-mtp-training: continue so, or begin with its "
            "weights in a Hugging Face folder (slime-events convert)"
        )
    _load(trainee, folder, trainee.settings, keys, optimizer=optimizer)
    if with_critic and trainee.critic is not None and (folder / CRITIC).is_dir():
        load_critic(trainee, folder, optimizer=optimizer)


def load_critic(trainee: Trainee, folder: str | Path, *, optimizer: bool) -> None:
    """Load only the critic of a checkpoint; collective. Raises CheckpointMismatch if the checkpoint has none."""
    _mark(folder)
    if not (Path(folder) / CRITIC).is_dir():
        raise CheckpointMismatch(f"{folder} holds no critic: give --critic-load a checkpoint of a run that had one")
    if trainee.critic is not None:
        _load(trainee.critic, Path(folder) / CRITIC, trainee.settings, Keys(), optimizer=optimizer)


def _mark(folder: str | Path) -> dict[str, Any]:
    if not Path(folder).is_dir():
        raise CheckpointMismatch(f"{folder} does not exist: it was removed (--keep-checkpoints), or never written")
    if not is_checkpoint(folder):
        raise CheckpointMismatch(
            f"{folder} is not a complete trainer checkpoint ({MARK} is missing): remove it to use an older checkpoint"
        )
    try:
        mark: dict[str, Any] = json.loads((Path(folder) / MARK).read_text())
    except ValueError as error:
        raise CheckpointMismatch(f"{folder} does not fit the model: {error}") from error
    return mark


def _request(part: Trainee | Critic, folder: Path, place: Place, keys: Keys, *, copied: bool) -> AsyncRequest:
    """Plan the write of a model. Ranks with the same state write a share each."""
    with stand_in():
        state = _state(part, keys, loading=False)
        agree_on_steps(state["optimizer"], part.optimizer, place)
        writer = FullyParallelSaveStrategyWrapper(InProcessWriter(copied=copied), place.group(Axis.REPLICAS))
        return dist_checkpointing.save(state, str(folder), sharded_strategy=writer, async_sharded_save=True)


def _load(part: Trainee | Critic, folder: Path, settings: TrainerSettings, keys: Keys, *, optimizer: bool) -> None:
    with stand_in():
        try:
            target = _state(part, keys, loading=True)
            views = shard_views(target["optimizer"])
            requested = {"model": target["model"]} | ({TENSORS: target["optimizer"]} if optimizer else {})
            state = dist_checkpointing.load(requested, str(folder), sharded_strategy=PartStrategy())
            steps = StepCounts.saved(state["optimizer"]) if optimizer else None
        except CheckpointException as error:  # torch's, with the errors of several ranks
            reasons = "; ".join(f"rank {rank}: {failure[0]}" for rank, failure in sorted(error.failures.items()))
            raise CheckpointMismatch(f"{folder} does not fit the model: {reasons}") from error
        except (CheckpointingException, KeyError, ValueError) as error:
            raise CheckpointMismatch(f"{folder} does not fit the model: {error}") from error
        part.model.module.load_state_dict(state["model"])
        if steps is None:
            follow_weights(part.optimizer)
            return
        if is_sharded(part.optimizer):
            load_sharded_state(part.optimizer, state.get(TENSORS, {}), steps, views)  # a rank may train nothing
        else:
            load_whole_state(part.optimizer, state[TENSORS], steps, counts=settings.optimizer == "adam")
    # This run's settings define rates and schedule, which may differ from those of the run that saved the checkpoint;
    # the checkpoint gives only the number of steps.
    part.scheduler.num_steps = 0
    part.scheduler.step(state["scheduler"]["num_steps"])


def _state(part: Trainee | Critic, keys: Keys, *, loading: bool) -> dict[str, Any]:
    """Return the sharded state of a model."""
    # Megatron adds this run's process groups to the metadata.
    metadata = {
        "chained_optim_avoid_prefix": True,
        "non_homogeneous_layers": keys.by_layer,
    }
    model = tensors = part.model.module.sharded_state_dict(metadata=metadata)
    if keys.by_expert:
        tensors = part.model.module.sharded_state_dict(metadata=metadata | {"singleton_local_shards": True})
    if is_sharded(part.optimizer):
        optimizer = sharded_state(part.optimizer, tensors)
    else:
        optimizer = part.optimizer.sharded_state_dict(tensors, is_loading=loading, metadata=metadata)
        leave_out_empty_groups(optimizer, part.optimizer)
    return {"model": model, "optimizer": optimizer, "scheduler": part.scheduler.state_dict()}
