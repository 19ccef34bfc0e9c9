"""`Trained`: a model of Megatron in training, with its optimizer and schedule: the policy or the critic."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.optimizer import ChainedOptimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from torch import Tensor

from actors.megatron.cpu import stand_in
from actors.megatron.equal_passes import EqualPasses, most_passes, shares_experts
from actors.megatron.forward import Packed, response_outputs
from actors.megatron.pipeline import Pipeline, has_output
from actors.megatron.router import ExpertBiases
from actors.megatron.virtual_stages import passes_multiple
from actors.step.heartbeat import beat
from actors.step.policy import Timed, UpdateSize, untimed
from actors.step.schedule import Figures, Forward, Gradients, Loss, Output, Schedule, Single
from schemas.errors import TrainerError
from slime_events.core.training.datums import AdamParams


def single(model: DistributedDataParallel, optimizer: ChainedOptimizer) -> Schedule:
    """Return the schedule of a model that each rank has as a whole, or cut over tensor parallel ranks."""

    def backward(loss: Tensor) -> None:
        optimizer.scale_loss(loss).backward()

    return Single(lambda: model.no_sync(), nullcontext, backward)  # a frozen model may have no `no_sync`


SINGLE = "single"
PIPELINE = "pipeline"
SCHEDULES: Mapping[str, Callable[[DistributedDataParallel, ChainedOptimizer], Schedule]] = {
    SINGLE: single,
    PIPELINE: Pipeline,
}


def schedule_of(model: DistributedDataParallel, optimizer: ChainedOptimizer) -> Schedule:
    """Return the schedule of a model: a pipeline if its layers are cut over ranks."""
    kind = PIPELINE if model.config.pipeline_model_parallel_size > 1 else SINGLE
    schedule = SCHEDULES[kind](model, optimizer)
    return EqualPasses(schedule, model) if shares_experts() or passes_multiple(model.config) > 1 else schedule


@dataclass(frozen=True, slots=True)
class Trained:
    """See `actors.step.policy.Trained`."""

    model: DistributedDataParallel
    optimizer: ChainedOptimizer
    scheduler: OptimizerParamScheduler

    @property
    def learning_rate(self) -> float:
        rate: float = self.optimizer.param_groups[0]["lr"]
        return rate

    @property
    def schedule(self) -> Schedule:
        return schedule_of(self.model, self.optimizer)

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
        with timed("forward_backward"):
            self.clear_gradients()
            before()
            figures = self.schedule.run(batches, forward, loss, Gradients.COMPLETE)
        with timed("gradients"):
            if self.model.ddp_config.overlap_grad_reduce and not most_passes(len(batches)):
                self.model.start_grad_sync()  # with micro batches, the last backward pass starts it
            finalize_model_grads([self.model])
        with timed("optimizer"), stand_in():
            _, norm, _ = self.optimizer.step()
        beat()
        if norm is None or not math.isfinite(norm):
            raise TrainerError(
                f"gradient norm {norm} in {what}: these weights are lost. Continue from the last checkpoint; check "
                "train_rollout_logprob_abs_diff and the learning rate"
            )
        self.scheduler.step(1)
        return float(norm), figures

    def clear_gradients(self) -> None:
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        ExpertBiases(self.model).forget_load()

    def apply(self, update: AdamParams) -> tuple[float, bool]:
        if self.model.ddp_config.overlap_grad_reduce:
            self.model.start_grad_sync()
        biases = ExpertBiases(self.model)
        finalize_model_grads([self.model])  # moves them
        self._set(update)
        with stand_in():
            overflowed = self.optimizer.prepare_grads()
            norm = float(self.optimizer.get_grad_norm())
            taken = not overflowed and math.isfinite(norm)
            if taken:
                self.optimizer.step()
            else:
                biases.take_back()
        beat()
        return norm, taken

    def _set(self, update: AdamParams) -> None:
        """Apply the update's parameters. Megatron's exceptions from weight decay, such as norms, are kept."""
        for part in self.optimizer.chained_optimizers:
            part.config.clip_grad = update.grad_clip_norm
        for group in self.optimizer.param_groups:
            group["lr"], group["eps"] = update.learning_rate, update.eps
            group["betas"] = (update.beta1, update.beta2)
            group["weight_decay"] = update.weight_decay * group.get("wd_mult", 1.0)


class Critic(Trained):
    """A value model in training (actors/megatron/critic.py)."""

    __slots__ = ()

    def values(self, packed: Packed) -> list[Tensor]:
        """Return the value at each position that predicts a response token, float32 [response] per sample."""
        own = replace(packed, packed=replace(packed.packed, routing=None))  # experts of the policy are not the critic's
        outputs = response_outputs(self.model, own)
        if not has_output(self.model):
            return []
        return packed.by_sample(packed.packed.of_all_targets(outputs.squeeze(-1)))
