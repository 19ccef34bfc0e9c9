"""`TrainerRank`: a Megatron process of the trainer."""

import gc
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import actors.megatron.import_core  # noqa: F401
from actors.backends import Backend
from actors.megatron import checkpoint
from actors.megatron.balance import Balance
from actors.megatron.cpu import has_transformer_engine, on_cpu
from actors.megatron.critic import build_critic
from actors.megatron.families.balance_losses import BalanceLosses
from actors.megatron.flags import sort_flags
from actors.megatron.formats.registry import check_beginning
from actors.megatron.frozen import freeze
from actors.megatron.frozen_model import Residences, load_frozen
from actors.megatron.last_pass import forget_last_pass
from actors.megatron.layout import replays_routing
from actors.megatron.model import build_model, transformer_config
from actors.megatron.optimizer import (
    build_optimizer,
    build_scheduler,
    follow_weights,
    forget_moments,
    wrap_data_parallel,
)
from actors.megatron.optimizer_digest import optimizer_digest
from actors.megatron.own_model import args_of
from actors.megatron.prediction import Predictions
from actors.megatron.prediction_settings import trained_architecture
from actors.megatron.residence import waits_on_host
from actors.megatron.resting import gradient_buffers, kept_tensors, trained_models
from actors.megatron.routes import Routes
from actors.megatron.trainee import Trainee, join, leave, logit_memory
from actors.megatron.weight_share import model_digest, weight_share
from actors.megatron.weights import export_hf_weights, load_hf_weights, tensor_bytes
from actors.megatron.whole_samples import whole_samples
from actors.step.commanded_step import CommandedSteps
from actors.step.policy import REFERENCE
from actors.step.rollout_step import RolloutStep
from actors.step.step_settings import StepSettings
from actors.step.train_dump import save_train_dump
from schemas.errors import RankLost, TrainerError
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.config.combinations import check_device
from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.machine.resting_memory import RestingMemory
from slime_events.core.training.datums import Beginning, PassResult, TrainPass
from slime_events.core.training.save_progress import SaveProgress, SaveState
from slime_events.core.training.train_batch import StepResult, TrainBatch
from slime_events.loop.training.difference import Distance, PartDistance, whole_distance
from slime_events.loop.training.past_versions import OLD_ACTOR, old_actor
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.trainer_points import IN_STEPS, INIT, MODEL, WRITTEN, RunEngines, TrainerFunctions
from storage.folders.places import local_copy
from storage.folders.remote import RemoteFolders, StoredFile
from storage.weights.shards import Shard, TensorBytes
from storage.weights.snapshot import DeltaPlan, VersionWriter
from storage.weights.store import Upload, is_own_draft
from storage.weights.stored_version import trained_tensors
from storage.weights.whole_copies import whole_copy

logger = logging.getLogger(__name__)


class TrainerRank(Backend):
    """A rank. Every method is collective: all ranks call it, in the same order, with the same arguments.

    On the CPU, the same weights, optimizer state and batch give the same new weights, bit for bit, on the same topology
    and number of threads.
    """

    def __init__(
        self,
        settings: TrainerSettings,
        algorithm: AlgorithmSettings,
        rank: int,
        world_size: int,
        master: str,
        shown: Mapping[str, object] | None = None,
    ) -> None:
        """Join the other ranks at `master` and load the weights.

        master: "host:port" of rank 0. The weights are those of `settings.load`, a folder of one of `FORMATS`, or else
        those of `settings.hf_checkpoint`. shown: the `args` of the user's functions; by default these
        settings.

        Raises CheckpointMismatch, ConfigError for settings that exclude each other, TrainerError if ranks are missing,
        PlugPointError if a user's function cannot be called.
        """
        self._settings, self._algorithm = settings, algorithm
        self._pending: checkpoint.PendingCheckpoint | None = None
        args = ArgsView.of(settings, algorithm) if shown is None else ArgsView(shown)
        self._functions = TrainerFunctions(args, settings, algorithm, whole=whole_samples)
        self._architecture = architecture = trained_architecture(settings)
        if architecture.prediction_layers and not architecture.trains_prediction:
            logger.warning(
                "multi-token prediction layers of %s are not trained: weight versions repeat them",
                settings.hf_checkpoint,
            )
        check_device(settings, cpu=on_cpu())
        self._flags = sort_flags(settings.megatron, architecture, cpu=on_cpu())
        self._config = transformer_config(architecture, settings, self._flags.transformer)
        torch.use_deterministic_algorithms(settings.deterministic)
        self.place = join(settings, rank, world_size, master)
        self._writer = VersionWriter(self._prefix, self.place.of_each_rank)
        self._memory = RestingMemory.of(self.place.device)
        try:
            self._functions.notify(INIT)
            self._begin()
        except BaseException:  # leave the process group after any error, so that this process can join again
            leave()
            raise

    @property
    def trainee(self) -> Trainee:
        """The models in training. Raises TrainerError while the rank rests, when their memory has no values."""
        self._check_awake()
        return self._trainee

    def _check_awake(self) -> None:
        if self._memory.is_resting:
            raise TrainerError("the rank rests: wake it first")

    def rest(self) -> None:
        """Give the device's memory back, except for buffers of communication and small tensors: see `RestingMemory`.

        Gradients are discarded. A checkpoint that is being written has its own copy. Until `wake`, only
        `finish_checkpoint`, `rest` and `close` may be called. Raises TrainerError if there is no room for the copies.
        """
        if self._memory.is_resting:
            return
        self._forget_last_pass()
        gc.collect()
        try:
            self._memory.rest(kept_tensors(self.trainee), gradient_buffers(self.trainee))
        except OSError as error:
            raise TrainerError(f"rank {self.place.rank} cannot rest: no copy of its state: {error}") from error

    def wake(self) -> None:
        """Bring everything back to the device, bit for bit. Raises RankLost if the copies cannot be read."""
        if not self._memory.is_resting:
            return
        try:
            self._memory.wake()
        except OSError as error:
            raise RankLost(f"rank {self.place.rank} cannot wake: {error}") from error
        self._commanded.forget()
        for trained in trained_models(self.trainee):
            trained.clear_gradients()

    def reset(self) -> None:
        """Load the initial weights again, with a new optimizer and a new schedule."""
        self._check_awake()
        # Free the old model and optimizer before new ones are built. Megatron's hooks make reference cycles with it.
        self._forget_last_pass()
        del self._trainee, self._commanded
        gc.collect()
        if not on_cpu():
            torch.cuda.empty_cache()
        self._begin()

    def _begin(self) -> None:
        """Build models with weights, optimizer and schedule."""
        settings, architecture, place = self._settings, self._architecture, self.place
        load, base = settings.load, settings.hf_checkpoint
        saved = load if load and checkpoint.is_checkpoint(load) else None
        first, step = (base, None) if saved or not load else (load, settings.ckpt_step)
        check_beginning(first, step, optimizer=settings.load_optim)
        policy = self._build()
        load_hf_weights(policy, architecture, first, place, step)
        freeze(policy, architecture, settings, place)
        room = Residences(policy, self._build, place.device, on_host=waits_on_host())
        frozen = load_frozen(architecture, settings, self._algorithm, self._flags.transformer, room, place)
        model = wrap_data_parallel(policy, self._config, settings, self._flags)
        optimizer = build_optimizer(model, settings, self._flags)
        scheduler = build_scheduler(optimizer, settings, self._flags.scheduler)
        critic = None
        if estimator_of(self._algorithm).needs_values:
            alone = replace(architecture, trains_prediction=False)
            critic = build_critic(alone, self._config, settings, self._flags, place)
        trained, functions = (model, optimizer, scheduler), self._functions
        routes = None
        if replays_routing(settings) and architecture.experts is not None:
            routes = Routes(
                architecture.experts, architecture.num_layers, of_engines=settings.use_rollout_routing_replay
            )
        losses, balance = BalanceLosses.of(self._flags.transformer), None
        if losses and architecture.experts is not None:
            balance = Balance(policy, losses, architecture)
        predictions = None
        if architecture.trains_prediction:
            predictions = Predictions(settings.mtp_loss_scaling_factor, logit_memory(settings))
        self._trainee = Trainee(
            *trained, architecture, settings, place, frozen, functions, critic, predictions, routes, balance
        )
        self._commanded = CommandedSteps(self.trainee)
        if saved:
            with_critic = settings.critic_load is None
            checkpoint.load(self.trainee, saved, optimizer=settings.load_optim, with_critic=with_critic)
        if critic and settings.critic_load and checkpoint.is_checkpoint(settings.critic_load):
            checkpoint.load_critic(self.trainee, settings.critic_load, optimizer=settings.load_optim)

    def _build(self) -> torch.nn.Module:
        """Build a model of the checkpoint's architecture without weights."""
        shown = args_of(self._architecture, vars(self._functions.args), local=not has_transformer_engine())
        own = self._functions.at(MODEL)
        return build_model(self._architecture, self._config, self.place.device, own=own, args=shown)

    def train(self, batch: TrainBatch, dump: str | None = None) -> StepResult:
        """Run all optimizer steps of a rollout step.

        dump: file for the step's inputs. Raises TrainerError; the weights are then unusable.
        """
        if batch.commanded is not None:
            if self._architecture.trains_prediction:
                raise TrainerError("enable_mtp_training does not train with a client's passes: leave it out")
            if isinstance(update := batch.commanded.update, Beginning):
                metrics = self._begin_from(update)
            else:
                metrics = self._commanded.step(batch.commanded.passes, update)
            hashed = self._settings.hashes_optimizer(batch.step + 1)
            return StepResult(metrics, self.optimizer_digest() if hashed else "")
        models = self._other_models(batch)
        if self.trainee.routes is not None:
            self.trainee.routes.forget()
        step = RolloutStep(self.trainee, StepSettings(self._settings, self._algorithm, self._functions), batch)
        if self._settings.reset_optimizer_states:
            forget_moments(self.trainee.optimizer)
            if self.trainee.critic is not None:
                forget_moments(self.trainee.critic.optimizer)
        metrics = step.run()
        if dump is not None:
            save_train_dump(step, batch, dump)
        digests = "", ""
        with step.context.metrics.timed("digest"):
            if self._settings.hashes_optimizer(batch.step + 1):
                digests = self.optimizer_digest(), self.critic_digest()
        seconds = {"seconds_digest": step.context.metrics.seconds["digest"]}
        optimizer, critic = digests
        return StepResult(metrics | seconds, optimizer, self._functions.digests(*IN_STEPS), models, critic)

    def _begin_from(self, beginning: Beginning) -> dict[str, float]:
        """Load other weights with a new optimizer, or a checkpoint with its optimizer; return the step's metrics."""
        if beginning.optimizer:
            self.load_checkpoint(beginning.checkpoint)
        else:
            self.reset()
            if beginning.version is not None:
                self.load_weights(beginning.folder)
        return {"grad_norm": 0.0, "skipped": 0.0}

    def run_pass(self, request: TrainPass, backward: bool) -> PassResult:
        """Run a client's pass. backward: add its gradients to the next step."""
        return self._commanded.run(request, backward=backward)

    def _other_models(self, batch: TrainBatch) -> dict[str, str]:
        """Load the step's reference; return the digests of all frozen models that the step uses, by name."""
        frozen = self.trainee.frozen
        if batch.reference is not None:
            frozen[REFERENCE].become(batch.reference, self.trainee.model)
        elif REFERENCE in frozen and frozen[REFERENCE].version is not None:
            raise TrainerError(
                f"step {batch.step} needs the original reference, but the ranks have a newer reference: reset them"
            )
        old = {old_actor(stored.version): stored.digest for stored in batch.old}
        return {name: model.digest for name, model in frozen.items() if name != OLD_ACTOR} | old

    def optimizer_digest(self) -> str:
        """Return the sha256 (hex) of the optimizer's state, which does not depend on the number of ranks."""
        return optimizer_digest(self.trainee.optimizer, self.trainee.model, self._architecture, self.place)

    def critic_digest(self) -> str:
        """Return the sha256 (hex) of the critic's weights and optimizer state; empty without a critic."""
        critic = self.trainee.critic
        if critic is None:
            return ""
        return optimizer_digest(critic.optimizer, critic.model, self._architecture, self.place, weights=True)

    def export_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (Hugging Face name, whole tensor) in the trainer's dtype; nothing on ranks other than 0.

        Exhaust the iterator, since ranks that hold parts of a tensor take part. A tensor may share memory with the
        model: use it before the next `train`.
        """
        yield from export_hf_weights(self.trainee.model, self.trainee.architecture, self.place)

    def export_bytes(self) -> list[TensorBytes]:
        """Return the exported weights as bytes, without a copy on the CPU; empty on ranks other than 0."""
        return [tensor_bytes(name, tensor) for name, tensor in self.export_weights()]

    def write_shards(self, folder: str, max_bytes: int, durable: bool, deltas: DeltaPlan | None = None) -> list[Shard]:
        """Write this rank's share of the weights to the folder of a draft version; return the files of all ranks."""
        share = partial(weight_share, self.trainee.model, self.trainee.architecture, self.place)
        Path(folder).mkdir(parents=True, exist_ok=True)  # the trainer's host has it, another one has not
        return self._writer.write(Path(folder), share, max_bytes=max_bytes, durable=durable, deltas=deltas)

    @property
    def _prefix(self) -> str:
        return f"rank{self.place.rank:05d}"

    def upload_shards(self, folder: str, upload: Upload) -> dict[str, StoredFile]:
        """Upload this rank's shards from the draft on its host; return the files of all ranks.

        Raises StoreUnavailable.
        """
        mine = {shard: name for shard, name in upload.files.items() if shard.startswith(self._prefix)}
        stored = RemoteFolders(upload.place).upload(upload.name, Path(folder), mine)
        every = {name: file for files in self.place.of_each_rank(stored) for name, file in files.items()}
        if not is_own_draft(folder):
            shutil.rmtree(folder, ignore_errors=True)
        return every

    def weights_digest(self) -> str:
        """Return the digest of the whole weights (storage/digests.py); each rank hashes its share."""
        return model_digest(self.trainee.model, self.trainee.architecture, self.place)

    def weights_distance(self, folder: str) -> Distance:
        """Measure the weights against a Hugging Face folder.

        Raises CheckpointMismatch if the folder has different tensors, WeightsDamaged.
        """
        share = weight_share(self.trainee.model, self.trainee.architecture, self.place)
        recorded = trained_tensors(folder)
        return whole_distance(recorded, self.place.of_each_rank(PartDistance.of(recorded, share)))

    def show_weights(self, folder: str) -> dict[str, str]:
        """Call the user's function with a written weight version; return the digest of its source by setting.

        Raises PlugPointError.
        """
        with local_copy(folder) as local:
            self._functions.notify(WRITTEN, str(local), RunEngines())
        return self._functions.digests(WRITTEN)

    def save_checkpoint(self, folder: str | Path) -> None:
        """Write model, optimizer, schedule and any critic to a new folder, which appears only when it is complete."""
        checkpoint.save(self.trainee, folder)

    def begin_checkpoint(self, folder: str | Path) -> None:
        """Copy the state to the host, and save the checkpoint in a thread.

        Only one checkpoint is written at a time: call `finish_checkpoint` before the next. Raises TrainerError.
        """
        if self._pending is not None:
            raise TrainerError(f"{folder}: the previous checkpoint is still being written")
        pending = checkpoint.PendingCheckpoint(self.trainee, folder, copied=True)
        pending.write_in_background()
        self._pending = pending

    def finish_checkpoint(self, wait: bool) -> SaveProgress:
        """Return the checkpoint's progress on all ranks: when all have written, it is saved or has failed.

        wait: wait until this rank has written.
        """
        if self._pending is None:
            raise TrainerError("no checkpoint is being written")
        progress = self._pending.complete(wait=wait)
        if progress.state is not SaveState.WRITING:
            self._pending = None
        return progress

    def load_checkpoint(self, folder: str | Path) -> None:
        """Continue from a checkpoint. Raises CheckpointMismatch if it does not fit."""
        checkpoint.load(self.trainee, folder)
        self._commanded.forget()

    def load_weights(self, folder: str | Path) -> None:
        """Load the weights of a Hugging Face folder; moments, step count and schedule stay, main weights follow.

        Raises CheckpointMismatch if the folder does not fit.
        """
        with whole_copy(folder) as local:
            load_hf_weights(self.trainee.model, self.trainee.architecture, local, self.place)
        follow_weights(self.trainee.optimizer)
        self._commanded.forget()

    def advance_schedule(self, optimizer_steps: int) -> None:
        """Advance the learning rate schedule by a number of optimizer steps."""
        self.trainee.scheduler.step(optimizer_steps)

    def close(self) -> None:
        """Leave the process group, after which this process may become another rank."""
        self._forget_last_pass()
        leave()

    def _forget_last_pass(self) -> None:
        trainee = getattr(self, "_trainee", None)  # none if `reset` failed
        for trained in (trainee, trainee and trainee.critic):
            if trained is not None:
                forget_last_pass(trained.model)
