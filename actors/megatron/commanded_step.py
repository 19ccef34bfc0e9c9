"""`CommandedSteps`: a client's passes and updates, in its order, on a rank."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from actors.megatron.cpu import stand_in
from actors.megatron.forward import Packed, pack_sequences
from actors.megatron.trainee import Trainee
from actors.step.heartbeat import beat
from slime_events.algorithms.token_losses import token_losses
from slime_events.core.training.datums import AdamParams, Datum, PassResult, TrainPass


class CommandedSteps:
    """Runs passes and updates. Every method is collective.

    It remembers the passes whose gradients are summed. If these are the first passes of a step, the step adds the
    others; if not, as after a crash, it starts again. In both cases gradients are summed in the step's order.
    """

    def __init__(self, trainee: Trainee) -> None:
        self._trainee = trainee
        self._summed: list[str] = []
        self._loss_sum = 0.0

    def run(self, request: TrainPass, *, backward: bool) -> PassResult:
        """Run a pass over datums, which are divided over data parallel ranks. backward: add its gradients."""
        trainee, place, datums = self._trainee, self._trainee.place, request.datums
        if backward and not self._summed:
            self._clear()
        lengths = [len(datum.targets) for datum in datums]
        result = torch.zeros(sum(lengths) + 1, device=place.device)
        views = torch.split(result[:-1], lengths)
        for members in trainee.split(datums, range(len(datums)), place.data.size())[place.data.rank()]:
            some = [datums[index] for index in members]
            with torch.set_grad_enabled(backward):
                log_probs, _ = trainee.log_probs(trainee.model, self._packed(some), 1.0)
                loss = self._loss(request, some, log_probs)
            if backward:
                with trainee.model.no_sync():
                    trainee.optimizer.scale_loss(loss).backward()
            for index, part in zip(members, log_probs, strict=True):
                views[index].copy_(part.detach())
            result[-1] += loss.detach()
        if place.data.size() > 1:
            dist.all_reduce(result, group=place.data)
        host = result.cpu().numpy()
        if backward:
            self._loss_sum = float(host[-1]) + (self._loss_sum if self._summed else 0.0)
            self._summed.append(request.key)
        return PassResult(host[:-1], float(host[-1]))

    def step(self, passes: Sequence[TrainPass], update: AdamParams) -> dict[str, float]:
        """Run the passes whose gradients are missing, then the update; return its metrics.

        If the norm of the gradients is not finite, weights and optimizer are unchanged, and `skipped` is 1.
        """
        keys = [request.key for request in passes]
        if self._summed != keys[: len(self._summed)]:
            self._summed = []
        for request in passes[len(self._summed) :]:
            self.run(request, backward=True)
        if not keys:
            self._clear()
        self._summed = []
        model, optimizer = self._trainee.model, self._trainee.optimizer
        if model.ddp_config.overlap_grad_reduce:
            model.start_grad_sync()
        finalize_model_grads([model])
        self._set(update)
        with stand_in():
            overflowed = optimizer.prepare_grads()
            norm = float(optimizer.get_grad_norm())
            taken = not overflowed and math.isfinite(norm)
            if taken:
                optimizer.step()
        beat()
        loss = self._loss_sum if keys else 0.0
        return {
            "loss": loss,
            "grad_norm": norm if taken else 0.0,
            "lr": update.learning_rate,
            "skipped": float(not taken),
        }

    def forget(self) -> None:
        """Discard the gradients, because the weights have changed."""
        self._summed = []

    def _clear(self) -> None:
        self._trainee.model.zero_grad_buffer()
        self._trainee.optimizer.zero_grad()

    def _set(self, update: AdamParams) -> None:
        """Apply the update's parameters. Megatron's exceptions from weight decay, such as norms, are kept."""
        for part in self._trainee.optimizer.chained_optimizers:
            part.config.clip_grad = update.grad_clip_norm
        for group in self._trainee.optimizer.param_groups:
            group["lr"], group["eps"] = update.learning_rate, update.eps
            group["betas"] = (update.beta1, update.beta2)
            group["weight_decay"] = update.weight_decay * group.get("wd_mult", 1.0)

    def _packed(self, datums: Sequence[Datum]) -> Packed:
        multiple = self._trainee.place.tensor.size() if self._trainee.model.config.sequence_parallel else 1
        sequences = [(datum.tokens, datum.targets) for datum in datums]
        return pack_sequences(sequences, self._trainee.place.device, multiple_of=multiple)

    def _loss(self, request: TrainPass, datums: Sequence[Datum], log_probs: Sequence[Tensor]) -> Tensor:
        device = self._trainee.place.device
        inputs = {
            name: torch.from_numpy(np.concatenate([datum.inputs[name] for datum in datums])).to(device)
            for name in datums[0].inputs
        }
        return token_losses(request.loss, torch.cat(list(log_probs)), inputs, request.config).sum()
