"""`join` the trainer's ranks. `Trainee`: the policy in training, its optimizer and settings."""

from __future__ import annotations

import copy
import errno
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor
from torch._C._distributed_c10d import HashStore, TCPStore

from actors.megatron.balance import Balance
from actors.megatron.cpu import install, on_cpu
from actors.megatron.embedding_rows import embedding_rows
from actors.megatron.families.architecture import Architecture
from actors.megatron.forward import Packed, pack, pack_sequences, response_log_probs
from actors.megatron.frozen_model import FrozenModel
from actors.megatron.layout import Layout
from actors.megatron.prediction import Predictions
from actors.megatron.router_choices import Routing
from actors.megatron.routes import Routes, Tokens
from actors.megatron.trained import Critic, Trained, schedule_of
from actors.megatron.tree_batch import pack_tree
from actors.megatron.virtual_stages import passes_multiple
from actors.step.data_split import forward_flops, packing_rule, sharing_pays, split_trees
from actors.step.host_columns import joined_on_host
from actors.step.log_probs import LogitMemory
from actors.step.place import Axis, Place
from actors.step.policy import PREFIXES, OfSamples, Outputs, Timed, UpdateSize, untimed
from actors.step.schedule import Figures, Forward, Gradients, Loss, Output
from schemas.doc import doc
from schemas.errors import RankLost, TrainerError
from slime_events.algorithms.packing import micro_batches
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.machine.gpus import look, this_machine
from slime_events.core.run.network import listen_towards
from slime_events.core.run.process_environment import set_for_cuda
from slime_events.core.training.datums import Datum
from slime_events.core.training.train_batch import StoredVersion, TrainSample
from slime_events.loop.training.past_versions import OLD_ACTOR
from slime_events.plugins.trainer_points import BEFORE_LOG_PROB, TrainerFunctions


def join(settings: TrainerSettings, rank: int, world_size: int, master: str) -> Place:
    """Join torch.distributed (gloo, or NCCL on CUDA) at `master` = "host:port" and form Megatron's groups.

    Call it once per process. Raises RankLost if another process has taken the port of `master`; TrainerError if the
    ranks do not meet within `distributed_timeout_minutes`, if they do not divide into copies of the model, or as
    `check_device`.
    """
    tensor, stages = settings.tensor_model_parallel_size, settings.pipeline_model_parallel_size
    context = settings.context_parallel_size
    if world_size % (tensor * stages * context):
        further = {"pipeline-model-parallel-size": stages, "context-parallel-size": context}
        times = [f" times {name} {size}" for name, size in further.items() if size > 1]
        raise TrainerError(f"{world_size} ranks do not divide by tensor-model-parallel-size {tensor}{''.join(times)}")
    layout = Layout.of(settings)
    layout.check_ranks(world_size)
    check_device()
    install()
    device = torch.device("cpu") if on_cpu() else _take_gpu(rank)
    timeout = timedelta(minutes=settings.distributed_timeout_minutes)
    backend = "gloo" if on_cpu() else "nccl"
    try:
        listen_towards(master.rpartition(":")[0])
        store = meeting_place(master, rank, world_size, timeout)
        dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=timeout, store=store)
    except (RuntimeError, ValueError, OSError) as error:
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE  # a new trainer chooses another port
        message = f"rank {rank} of {world_size} could not join the trainer at {master}: {error}"
        raise (RankLost if is_taken else TrainerError)(message) from error
    parallel_state.initialize_model_parallel(
        tensor,
        stages,
        context_parallel_size=context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=layout.expert_tensor,
        distributed_timeout_minutes=settings.distributed_timeout_minutes,
    )
    if not on_cpu():
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

        model_parallel_cuda_manual_seed(settings.seed)
    torch.manual_seed(settings.seed)
    groups = parallel_state.get_tensor_model_parallel_group(), parallel_state.get_data_parallel_group()
    others = {
        Axis.PIPELINE: parallel_state.get_pipeline_model_parallel_group(),
        Axis.CONTEXT: parallel_state.get_context_parallel_group(),
        Axis.EXPERT: parallel_state.get_expert_model_parallel_group(),
        Axis.EXPERT_TENSOR: parallel_state.get_expert_tensor_parallel_group(),
        Axis.EXPERT_DATA: parallel_state.get_expert_data_parallel_group(),
        Axis.REPLICAS: parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
    return Place(rank, world_size, device, *groups, others)


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
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, int(port)), family=family).detach() if rank == 0 else None
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


def logit_memory(settings: TrainerSettings) -> LogitMemory:
    """Return the limits that the settings set on the memory for logits."""
    return LogitMemory(settings.log_probs_chunk_size or -1, settings.recompute_loss_function)


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """A frozen model beside the policy; see `actors.step.policy.Frozen`."""

    trainee: Trainee
    name: str

    def become(self, stored: StoredVersion) -> None:
        self.trainee.frozen[self.name].become(stored, self.trainee.model)

    def score(self, samples: Sequence[TrainSample], indices: Sequence[int], temperature: float) -> OfSamples:
        trainee = self.trainee
        with trainee.frozen[self.name].residence.present(trainee.model) as model:
            trainee.functions.notify(BEFORE_LOG_PROB, [model], PREFIXES[self.name])
            routes = trainee.routes if self.name == OLD_ACTOR else None
            routing = routes.scoring if routes is not None and routes.of_engines else None
            return trainee.scores_of(model, samples, indices, temperature, routing=routing)


@dataclass(frozen=True, slots=True)
class Trainee(Trained):
    """The policy in training, with its settings and further models: Megatron's `actors.step.policy.Policy`."""

    architecture: Architecture
    settings: TrainerSettings
    place: Place
    frozen: Annotated[Mapping[str, FrozenModel], doc("Frozen models that compute log-probs, by name.")]
    functions: Annotated[TrainerFunctions, doc("The user's functions.")]
    critic: Annotated[Critic | None, doc("The value model, if the estimator needs values.")] = None
    predictions: Annotated[Predictions | None, doc("The loss of the prediction layer; None if it is not trained.")] = (
        None
    )
    routes: Annotated[Routes | None, doc("The experts of a step's samples; None if routers always choose.")] = None
    balance: Annotated[Balance | None, doc("Auxiliary losses of the routers; None without.")] = None

    @property
    def vocab_size(self) -> int:
        architectures = self.architecture, *(frozen.architecture for frozen in self.frozen.values())
        return min(architecture.vocab_size for architecture in architectures)

    @property
    def replays_routing(self) -> bool:
        return self.routes is not None

    def engine_routed(self, samples: Sequence[TrainSample]) -> float | None:
        routes = self.routes
        return routes.engine_share(samples) if routes is not None and routes.of_engines else None

    @property
    def uses_every_sample(self) -> bool:
        return self.balance is not None or self.predictions is not None

    def own_metrics(self) -> dict[str, float]:
        of_routers = {} if self.balance is None else self.balance.metrics()
        return of_routers | ({} if self.predictions is None else self.predictions.end(self.place))

    def update(
        self,
        batches: Sequence[list[int]],
        forward: Forward[Output],
        loss: Loss[Output, Figures],
        *,
        what: str,
        timed: Timed = untimed,
        before: Callable[[], None] = lambda: None,
        size: UpdateSize | None = None,
    ) -> tuple[float, list[Figures]]:
        balance, predictions = self.balance, self.predictions
        step = partial(Trained.update, self, batches, forward, loss, what=what, timed=timed)

        def prepare() -> None:
            before()  # may change weights
            if predictions is not None and self.place.size(Axis.PIPELINE) > 1:
                predictions.take_embedding(embedding_rows(self.model, predictions.ids(batches), self.place))

        if balance is None or size is None:
            return step(before=prepare)

        def before_and_count() -> None:
            prepare()
            balance.count(lambda: self.schedule.run(batches, forward, lambda *_: (None, None), Gradients.NONE))

        with balance.of_update(size, float(self.optimizer.scale_loss(torch.ones(())))):
            return step(before=before_and_count)

    @property
    def handles(self) -> tuple[list[Any], Any, Any]:
        return [self.model], self.optimizer, self.scheduler

    def frozen_model(self, name: str) -> FrozenPolicy | None:
        return FrozenPolicy(self, name) if name in self.frozen else None

    def deal(self, samples: Sequence[TrainSample] | Sequence[Datum], indices: Sequence[int]) -> list[list[int]]:
        return self.split(samples, indices, self.place.data.size())[self.place.data.rank()]

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
        rule = replace(rule, multiple=passes_multiple(self.model.config))
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
        """Pack samples to a micro batch on this rank's device. Routers use the recorded experts, if there are any."""
        packed = self._packed(samples, indices)
        if self.routes is not None:
            packed.packed.routing = self.routes.training(self._tokens(samples, indices, packed))
        if self.predictions is not None:
            own = packed.packed.of_own_tokens
            packed.packed.prediction = self.predictions.of(samples, indices, packed.token_ids, own)
        return packed

    def begin_update(self, samples: Sequence[TrainSample], masks: Sequence[Tensor], indices: Sequence[int]) -> None:
        if self.predictions is not None:
            scale = float(self.optimizer.scale_loss(torch.ones(())))
            self.predictions.begin(samples, masks, indices, scale)

    def _tokens(self, samples: Sequence[TrainSample], indices: Sequence[int], packed: Packed) -> Tokens:
        parts = self.place.tensor if self.model.config.sequence_parallel else None
        return Tokens([samples[index] for index in indices], packed.packed, parts)

    def _packed(self, samples: Sequence[TrainSample], indices: Sequence[int]) -> Packed:
        chosen, device = [samples[index] for index in indices], self.place.device
        if self.settings.tree_packing:
            pays = partial(sharing_pays, self.architecture)
            return pack_tree(chosen, device, pays, multiple_of=self._multiple)
        return pack(chosen, device, multiple_of=self._multiple, context=self._context)

    def pack_datums(self, datums: Sequence[Datum]) -> Packed:
        sequences = [(datum.tokens, datum.targets) for datum in datums]
        return pack_sequences(sequences, self.place.device, multiple_of=self._multiple, context=self._context)

    @property
    def _multiple(self) -> int:
        """The number of a rank's tokens is a multiple of this."""
        return self.place.tensor.size() if self.model.config.sequence_parallel else 1

    @property
    def _context(self) -> dist.ProcessGroup:
        """The ranks over which each sequence is cut."""
        return self.place.group(Axis.CONTEXT)

    def forward(self, packed: Packed, temperature: float, *, entropy_gradient: bool = False) -> Outputs:
        return self.outputs_of(self.model, packed, temperature, entropy_gradient=entropy_gradient)

    def outputs_of(
        self, model: torch.nn.Module, packed: Packed, temperature: float, *, entropy_gradient: bool = False
    ) -> Outputs:
        """Call `response_log_probs` on a model, within the memory that the settings allow."""
        memory, group = logit_memory(self.settings), self.place.tensor
        return response_log_probs(model, packed, temperature, group, entropy_gradient=entropy_gradient, memory=memory)

    def logits(self, packed: Packed) -> Tensor:
        every = copy.copy(packed.packed)
        every.rows = None
        inputs = every.inputs(packed.token_ids, packed.position_ids)
        logits: Tensor = self.model(*inputs, None, packed_seq_params=every)
        return every.of_all_tokens(logits.squeeze(0)).unsqueeze(0).float()

    def score(
        self,
        samples: Sequence[TrainSample],
        indices: Sequence[int],
        temperature: float,
        entropies: OfSamples | None = None,
    ) -> OfSamples:
        self.functions.notify(BEFORE_LOG_PROB, [self.model], "")
        routing = None if self.routes is None else self.routes.recording
        return self.scores_of(self.model, samples, indices, temperature, entropies, routing)

    def scores_of(
        self,
        model: torch.nn.Module,
        samples: Sequence[TrainSample],
        indices: Sequence[int],
        temperature: float,
        entropies: OfSamples | None = None,
        routing: Callable[[Tokens], Routing] | None = None,
    ) -> OfSamples:
        """Return the log-probs of each response by index under a model of this trainer; see `score`.

        routing: of the tokens of a micro batch; None: routers choose.
        """

        def forward(members: list[int]) -> Outputs:
            packed = self._packed(samples, members)
            if routing is not None:
                packed.packed.routing = routing(self._tokens(samples, members, packed))
            return self.outputs_of(model, packed, temperature)

        def on_host(outputs: Outputs, members: list[int]) -> tuple[None, tuple[list[Tensor], list[Tensor]]]:
            entropy = [] if entropies is None else joined_on_host(outputs.entropy)
            return None, (joined_on_host(outputs.log_probs), entropy)

        scores: OfSamples = {}
        batches = self.split(samples, indices, scoring=True)[0]
        schedule = schedule_of(model, self.optimizer)
        figures = schedule.run(batches, forward, on_host, Gradients.NONE)
        for members, (log_probs, entropy) in zip(batches, figures, strict=True):
            scores.update(zip(members, log_probs, strict=True))
            if entropies is not None:
                entropies.update(zip(members, entropy, strict=True))
        return scores
