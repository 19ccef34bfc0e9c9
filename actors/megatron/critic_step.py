"""`CriticStep`: the critic's part of a rollout step: values before the update, then its own optimizer steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from actors.megatron.critic import response_values
from actors.megatron.trainee import Critic, Trainee
from actors.megatron.update import update
from actors.step.host_columns import joined_on_host, to_device
from actors.step.step_metrics import StepMetrics
from schemas.doc import doc
from slime_events.algorithms.value_model import value_figures, value_objective
from slime_events.core.training.train_batch import TrainSample


class Targets(NamedTuple):
    """Inputs of the critic's loss for all samples of a step; columns are by index into the batch."""

    values: Annotated[Mapping[int, Tensor], doc("float32 [response] each: values before the update")]
    returns: Annotated[Mapping[int, Tensor], doc("float32 [response] each: targets of the values")]
    advantages: Annotated[Mapping[int, Tensor], doc("float32 [response] each: advantages for the policy")]
    masks: Annotated[Sequence[Tensor], doc("[response] each: loss masks")]
    denominators: Annotated[Sequence[float] | None, doc("trained tokens of each sample's rollout")]


@dataclass(frozen=True, slots=True)
class CriticStep:
    """Trains the critic on all samples, also on those that cannot move the policy."""

    trainee: Trainee
    critic: Critic
    samples: Sequence[TrainSample]
    batches: Annotated[Sequence[list[list[int]]], doc("This rank's micro batches by optimizer step.")]

    @torch.no_grad()
    def values(self) -> dict[int, Tensor]:
        """Return the value of each response token of this rank's samples by index: float32 [response], in host memory,
        without gradient.
        """
        values: dict[int, Tensor] = {}
        for members in chain.from_iterable(self.batches):
            packed = self.trainee.pack(self.samples, members)
            values.update(zip(members, joined_on_host(response_values(self.critic.model, packed)), strict=True))
        return values

    def train(self, targets: Targets, divisors: Sequence[float], metrics: StepMetrics) -> dict[str, float]:
        """Run all optimizer steps; return mean gradient norm, last learning rate, and `value_figures` before them.

        divisors: divisor of the loss by optimizer step.
        """
        norms, rate = [], 0.0
        for number, (batches, divisor) in enumerate(zip(self.batches, divisors, strict=True), 1):
            rate = self.critic.optimizer.param_groups[0]["lr"]

            def loss_of(members: list[int], divisor: float = divisor) -> Tensor:
                return self._loss(members, targets, metrics) / divisor

            what = f"the critic's optimizer step {number} of {len(divisors)}"
            norms.append(update(self.critic, batches, loss_of, what=what))
        by_name = (targets.values, targets.returns, targets.advantages, targets.masks)
        figures = value_figures(*([part[index] for index in targets.values] for part in by_name))
        return figures | {"critic_grad_norm": sum(norms) / len(norms), "critic_lr": rate}

    def _loss(self, members: list[int], targets: Targets, metrics: StepMetrics) -> Tensor:
        denominators, device = targets.denominators, self.trainee.place.device
        loss, figures = value_objective(
            values=response_values(self.critic.model, self.trainee.pack(self.samples, members)),
            old_values=to_device([targets.values[index] for index in members], device),
            returns=to_device([targets.returns[index] for index in members], device),
            loss_masks=to_device([targets.masks[index] for index in members], device),
            rollout_denoms=None if denominators is None else [denominators[index] for index in members],
            settings=self.trainee.algorithm,
        )
        for name, value in figures.items():
            metrics.add_over_the_step(name, value)
        return loss
