"""`CriticStep`: the critic's part of a rollout step: values before the update, then optimizer steps of its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from actors.megatron.critic import response_values
from actors.megatron.step_metrics import StepMetrics
from actors.megatron.trainee import Critic, Trainee
from actors.megatron.update import update
from slime_events.algorithms.value_model import value_objective
from slime_events.core.train_batch import TrainSample


@dataclass(frozen=True, slots=True)
class CriticStep:
    """batches: of each optimizer step this rank's micro batches, all of its samples: each has something to say about
    the critic. masks, denominators: as `RolloutStep` has them, of all samples.
    """

    trainee: Trainee
    critic: Critic
    samples: Sequence[TrainSample]
    batches: Sequence[list[list[int]]]
    masks: Sequence[Tensor]
    denominators: Sequence[float] | None

    @torch.no_grad()
    def values(self) -> dict[int, Tensor]:
        """Index -> value of each response token, float32 [response], of this rank's samples, without gradient."""
        found: dict[int, Tensor] = {}
        for members in (members for batches in self.batches for members in batches):
            packed = self.trainee.pack(self.samples, members)
            found.update(zip(members, response_values(self.critic.model, packed), strict=True))
        return found

    def train(
        self,
        values: Mapping[int, Tensor],
        returns: Mapping[int, Tensor],
        divisors: Sequence[float],
        metrics: StepMetrics,
    ) -> dict[str, float]:
        """All optimizer steps; mean gradient norm and last learning rate. values: before the update, of all samples;
        divisors: what the loss of each optimizer step is divided by.
        """
        norms, rate = [], 0.0
        for number, (batches, divisor) in enumerate(zip(self.batches, divisors, strict=True), 1):
            rate = self.critic.optimizer.param_groups[0]["lr"]

            def loss_of(members: list[int], divisor: float = divisor) -> Tensor:
                return self._loss(members, values, returns, metrics) / divisor

            what = f"the critic's optimizer step {number} of {len(divisors)}"
            norms.append(update(self.critic, batches, loss_of, what=what))
        return {"critic_grad_norm": sum(norms) / len(norms), "critic_lr": rate}

    def _loss(
        self, members: list[int], values: Mapping[int, Tensor], returns: Mapping[int, Tensor], metrics: StepMetrics
    ) -> Tensor:
        loss, figures = value_objective(
            values=response_values(self.critic.model, self.trainee.pack(self.samples, members)),
            old_values=[values[index] for index in members],
            returns=[returns[index] for index in members],
            loss_masks=[self.masks[index] for index in members],
            rollout_denoms=None if self.denominators is None else [self.denominators[index] for index in members],
            settings=self.trainee.algorithm,
        )
        for name, value in figures.items():
            metrics.add_over_the_step(name, value)
        return loss
