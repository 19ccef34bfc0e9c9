"""`join` the trainer's ranks. `Trainee`: the policy in training, its optimizer and settings."""

import errno
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor
from torch._C._distributed_c10d import HashStore, TCPStore

from actors.megatron.cpu import install, on_cpu
from actors.megatron.families.architecture import Architecture
from actors.megatron.forward import Packed, pack, response_log_probs
from actors.megatron.frozen_model import FrozenModel
from actors.megatron.tree_batch import pack_tree
from actors.step.data_split import forward_flops, packing_rule, sharing_pays, split_trees
from actors.step.host_columns import joined_on_host
from actors.step.log_probs import LogitMemory
from actors.step.place import Place
from schemas.doc import doc
from schemas.errors import RankLost, TrainerError
from slime_events.algorithms.packing import micro_batches
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.machine.gpus import look, this_machine
from slime_events.core.run.process_environment import listen_on_loopback, set_for_cuda
from slime_events.core.training.datums import Datum
from slime_events.core.training.train_batch import TrainSample
from slime_events.plugins.trainer_points import TrainerFunctions


def join(settings: TrainerSettings, rank: int, world_size: int, master: str) -> Place:
    """Join torch.distributed (gloo, or NCCL on CUDA) at `master` = "host:port" and form Megatron's groups.

    Call it once per process. Raises RankLost if another process has taken the port of `master`; TrainerError if the
    ranks do not meet within `distributed_timeout_minutes`, if they do not divide into tensor parallel groups, or as
    `check_device`.
    """
    if world_size % settings.tensor_model_parallel_size:
        raise TrainerError(
            f"{world_size} ranks do not divide by tensor-model-parallel-size {settings.tensor_model_parallel_size}"
        )
    check_device()
    install()
    device = torch.device("cpu") if on_cpu() else _take_gpu(rank)
    timeout = timedelta(minutes=settings.distributed_timeout_minutes)
    backend = "gloo" if on_cpu() else "nccl"
    listen_on_loopback()
    try:
        store = meeting_place(master, rank, world_size, timeout)
        dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=timeout, store=store)
    except (RuntimeError, ValueError, OSError) as error:
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE  # a new trainer chooses another port
        message = f"rank {rank} of {world_size} could not join the trainer at {master}: {error}"
        raise (RankLost if is_taken else TrainerError)(message) from error
    parallel_state.initialize_model_parallel(
        settings.tensor_model_parallel_size, distributed_timeout_minutes=settings.distributed_timeout_minutes
    )
    if not on_cpu():
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(settings.seed)
    torch.manual_seed(settings.seed)
    groups = parallel_state.get_tensor_model_parallel_group(), parallel_state.get_data_parallel_group()
    return Place(rank, world_size, device, *groups)


def _take_gpu(rank: int) -> torch.device:
    """Select this rank's GPU. Ray shows an actor only its own GPU; a rank started by hand sees all of the node's."""
    set_for_cuda()
    local = 0 if torch.cuda.device_count() == 1 else rank % torch.cuda.device_count()
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device


def meeting_place(master: str, rank: int, world_size: int, timeout: timedelta) -> HashStore | TCPStore:
    """Return torch's store, which listens only on the master's address; by default it listens on all addresses.

    A single rank needs no port.
    """
    if world_size == 1:
        return HashStore()
    host, _, port = master.rpartition(":")
    listening = socket.create_server((host, int(port))).detach() if rank == 0 else None
    return TCPStore(host, int(port), world_size, rank == 0, timeout, master_listen_fd=listening)


def check_device() -> None:
    """Raise TrainerError if this process would train on the CPU of a machine whose GPUs are not hidden.

    The launcher checks this too, but only for machines that it knows at the start.
    """
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""  # set by --device cpu
    if on_cpu() and not is_hidden and (problem := look(this_machine()).problem()):
        raise TrainerError(problem)


def leave() -> None:
    """Undo `join`, so that the process may join again."""
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class Critic:
    """A value model in training (actors/megatron/critic.py)."""

    model: DistributedDataParallel
    optimizer: ChainedOptimizer
    scheduler: OptimizerParamScheduler


@dataclass(frozen=True, slots=True)
class Trainee:
    """The policy in training, with its settings, optimizer and further models."""

    architecture: Architecture
    settings: TrainerSettings
    algorithm: AlgorithmSettings
    place: Place
    model: DistributedDataParallel
    frozen: Annotated[Mapping[str, FrozenModel], doc("Frozen models that compute log-probs, by name.")]
    optimizer: ChainedOptimizer
    scheduler: OptimizerParamScheduler
    functions: Annotated[TrainerFunctions, doc("The user's functions.")]
    critic: Annotated[Critic | None, doc("The value model, if the estimator needs values.")] = None

    def split(
        self,
        samples: Sequence[TrainSample] | Sequence[Datum],
        indices: Sequence[int],
        ranks: int = 1,
        *,
        scoring: bool = False,
    ) -> list[list[list[int]]]:
        """Return the micro batches of each data parallel rank, as `indices` into `samples`.

        ranks: number of data parallel ranks. scoring: see `packing_rule`.
        """
        rule = packing_rule(self.settings, self.architecture, ranks, cpu=on_cpu(), scoring=scoring)
        by_work = self.settings.balance_by_flops
        if self.settings.tree_packing:
            sequences = [samples[index].tokens for index in indices]
            dealt = split_trees(sequences, rule, self.architecture, by_work=by_work)
        else:
            lengths = [samples[index].total_length for index in indices]
            work = [forward_flops(self.architecture, length) for length in lengths] if by_work else None
            dealt = micro_batches(lengths, rule, work)
        return [[[indices[place] for place in members] for members in batches] for batches in dealt]

    def pack(self, samples: Sequence[TrainSample], indices: Sequence[int]) -> Packed:
        """Pack samples to a micro batch on this rank's device."""
        chosen, device = [samples[index] for index in indices], self.place.device
        if self.settings.tree_packing:
            return pack_tree(chosen, device, partial(sharing_pays, self.architecture))
        multiple = self.place.tensor.size() if self.model.config.sequence_parallel else 1
        return pack(chosen, device, multiple_of=multiple)

    def log_probs(
        self,
        model: torch.nn.Module,
        packed: Packed,
        temperature: float,
        *,
        entropy_gradient: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Call `response_log_probs` within the memory that the settings allow."""
        saving = LogitMemory(self.settings.log_probs_chunk_size or -1, self.settings.recompute_loss_function)
        group = self.place.tensor
        return response_log_probs(model, packed, temperature, group, entropy_gradient=entropy_gradient, memory=saving)

    @torch.no_grad()
    def score(
        self,
        model: torch.nn.Module,
        samples: Sequence[TrainSample],
        indices: Sequence[int],
        temperature: float,
        entropies: dict[int, Tensor] | None = None,
    ) -> dict[int, Tensor]:
        """Return the log-probs of each response by index: float32 [response], in host memory, without gradient.

        entropies: filled with the entropies in the same form.
        """
        scores: dict[int, Tensor] = {}
        for members in self.split(samples, indices, scoring=True)[0]:
            log_probs, entropy = self.log_probs(model, self.pack(samples, members), temperature)
            scores.update(zip(members, joined_on_host(log_probs), strict=True))
            if entropies is not None:
                entropies.update(zip(members, joined_on_host(entropy), strict=True))
        return scores
