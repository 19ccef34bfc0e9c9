"""`CommandedSteps`: a client's passes and updates, in its order, on a rank."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from actors.step.policy import Outputs, Policy
from actors.step.schedule import Gradients
from slime_events.algorithms.token_losses import token_losses
from slime_events.core.training.datums import AdamParams, Datum, PassResult, TrainPass


class CommandedSteps:
    """Runs passes and updates. Every method is collective.

    It remembers the passes whose gradients are summed. If these are the first passes of a step, the step adds the
    others; if not, as after a crash, it starts again. In both cases gradients are summed in the step's order.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._summed: list[str] = []
        self._loss_sum = 0.0

    def run(self, request: TrainPass, *, backward: bool) -> PassResult:
        """Run a pass over datums, which are divided over data parallel ranks. backward: add its gradients."""
        policy, place, datums = self._policy, self._policy.place, request.datums
        if backward and not self._summed:
            policy.clear_gradients()
        lengths = [len(datum.targets) for datum in datums]
        result = torch.zeros(sum(lengths) + 1, device=place.device)
        views = torch.split(result[:-1], lengths)

        def forward(members: list[int]) -> Outputs:
            return policy.forward(policy.pack_datums([datums[index] for index in members]), 1.0)

        def loss_of(outputs: Outputs, members: list[int]) -> tuple[Tensor, tuple[Tensor, list[Tensor]]]:
            loss = self._loss(request, [datums[index] for index in members], outputs.log_probs)
            return loss, (loss.detach(), [part.detach() for part in outputs.log_probs])

        batches = policy.deal(datums, range(len(datums)))
        gradients = Gradients.ADD if backward else Gradients.NONE
        figures = policy.schedule.run(batches, forward, loss_of, gradients)
        for members, (loss, log_probs) in zip(batches, figures, strict=True):
            for index, part in zip(members, log_probs, strict=True):
                views[index].copy_(part)
            result[-1] += loss
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
            self._policy.clear_gradients()
        self._summed = []
        norm, taken = self._policy.apply(update)
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

    def _loss(self, request: TrainPass, datums: Sequence[Datum], log_probs: Sequence[Tensor]) -> Tensor:
        device = self._policy.place.device
        inputs = {
            name: torch.from_numpy(np.concatenate([datum.inputs[name] for datum in datums])).to(device)
            for name in datums[0].inputs
        }
        return token_losses(request.loss, torch.cat(list(log_probs)), inputs, request.config).sum()
