"""`CriticStep`: the critic's part of a rollout step: values before the update, then its own optimizer steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, NamedTuple

from torch import Tensor

from actors.step.host_columns import joined_on_host, to_device
from actors.step.policy import Policy, ValueModel
from actors.step.schedule import Gradients
from actors.step.step_metrics import StepMetrics
from schemas.doc import doc
from slime_events.algorithms.value_model import value_figures, value_objective
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.training.train_batch import TrainSample


class ValueTargets(NamedTuple):
    """Inputs of the critic's loss for all samples of a step; columns are by index into the batch."""

    values: Annotated[Mapping[int, Tensor], doc("float32 [response] each: values before the update")]
    returns: Annotated[Mapping[int, Tensor], doc("float32 [response] each: targets of the values")]
    advantages: Annotated[Mapping[int, Tensor], doc("float32 [response] each: advantages for the policy")]
    masks: Annotated[Sequence[Tensor], doc("[response] each: loss masks")]
    denominators: Annotated[Sequence[float] | None, doc("trained tokens of each sample's rollout")]


@dataclass(frozen=True, slots=True)
class CriticStep:
    """Trains the critic on all samples, also on those that cannot move the policy."""

    policy: Policy
    critic: ValueModel
    samples: Sequence[TrainSample]
    batches: Annotated[Sequence[list[list[int]]], doc("This rank's micro batches by optimizer step.")]
    algorithm: AlgorithmSettings

    def values(self) -> dict[int, Tensor]:
        """Return the value of each response token of this rank's samples by index: float32 [response], in host memory,
        without gradient.
        """

        def on_host(values: list[Tensor], members: list[int]) -> tuple[None, list[Tensor]]:
            return None, joined_on_host(values)

        batches = list(chain.from_iterable(self.batches))
        every = self.critic.schedule.run(batches, self._forward, on_host, Gradients.NONE)
        values: dict[int, Tensor] = {}
        for members, parts in zip(batches, every, strict=True):
            values.update(zip(members, parts, strict=True))
        return values

    def train(self, targets: ValueTargets, divisors: Sequence[float], metrics: StepMetrics) -> dict[str, float]:
        """Run all optimizer steps; return mean gradient norm, last learning rate, and `value_figures` before them.

        divisors: divisor of the loss by optimizer step.
        """
        norms, rate = [], 0.0
        for number, (batches, divisor) in enumerate(zip(self.batches, divisors, strict=True), 1):
            rate = self.critic.learning_rate

            def loss_of(
                values: list[Tensor], members: list[int], divisor: float = divisor
            ) -> tuple[Tensor, dict[str, Tensor]]:
                loss, figures = self._loss(values, members, targets)
                return loss / divisor, figures

            what = f"the critic's optimizer step {number} of {len(divisors)}"
            norm, every = self.critic.update(batches, self._forward, loss_of, what=what)
            norms.append(norm)
            for name, value in chain.from_iterable(figures.items() for figures in every):
                metrics.add_over_the_step(name, value)
        by_name = (targets.values, targets.returns, targets.advantages, targets.masks)
        figures = value_figures(*([part[index] for index in targets.values] for part in by_name))
        return figures | {"critic_grad_norm": sum(norms) / len(norms), "critic_lr": rate}

    def _forward(self, members: list[int]) -> list[Tensor]:
        return self.critic.values(self.policy.pack(self.samples, members))

    def _loss(
        self, values: list[Tensor], members: list[int], targets: ValueTargets
    ) -> tuple[Tensor, dict[str, Tensor]]:
        denominators, device = targets.denominators, self.policy.place.device
        return value_objective(
            values=values,
            old_values=to_device([targets.values[index] for index in members], device),
            returns=to_device([targets.returns[index] for index in members], device),
            loss_masks=to_device([targets.masks[index] for index in members], device),
            rollout_denoms=None if denominators is None else [denominators[index] for index in members],
            settings=self.algorithm,
        )
