"""`RolloutStep`: train a batch, from rewards to updated weights."""

import torch

from actors.step.critic_step import CriticStep, ValueTargets
from actors.step.data_split import checked_batch
from actors.step.losses import LOSSES, LossFigures
from actors.step.policy import Policy, UpdateSize
from actors.step.preparation import Preparation
from actors.step.scores import Scores
from actors.step.step_columns import StepColumns
from actors.step.step_context import StepContext
from actors.step.step_metrics import OVER_THE_STEP, OffPolicyMetrics, StepMetrics
from actors.step.step_plan import StepPlan
from actors.step.step_settings import StepSettings
from slime_events.algorithms.objective import truncated
from slime_events.algorithms.packing import OptimizerStep
from slime_events.core.training.train_batch import TrainBatch
from slime_events.plugins.trainer_points import BEFORE_TRAIN_STEP


class RolloutStep:
    """A batch on a rank: preparation, then for each optimizer step forward and backward over this rank's micro batches,
    the sum of gradients over ranks, and the update.
    """

    def __init__(self, policy: Policy, settings: StepSettings, batch: TrainBatch) -> None:
        """Raise TrainerError if a sample cannot be trained on, or if the batch fills no optimizer step."""
        batch = checked_batch(batch, policy.vocab_size)
        columns = StepColumns(batch, settings.algorithm, policy.place.device)
        plan = StepPlan(policy, settings, batch)
        self.context = StepContext(policy, settings, batch, columns, plan, StepMetrics())
        self.critic: CriticStep | None = None
        if policy.critic is not None:
            self.critic = CriticStep(policy, policy.critic, batch.samples, plan.deal_all(), settings.algorithm)
        self.preparation = Preparation(
            self.context, Scores(policy, settings, batch, plan.kept, columns.entropies), self.critic
        )
        reuses = any(sample.reused for sample in batch.samples)
        self._off_policy = OffPolicyMetrics(policy.place.device) if reuses else None

    def run(self) -> dict[str, float]:
        """Train, and return the metrics of the step."""
        policy, plan, metrics = self.context.policy, self.context.plan, self.context.metrics
        with metrics.timed("scoring"):
            self.preparation.run()
        of_critic = self._train_critic(self.critic) if self.critic is not None else {}
        grad_norms = []
        rate = 0.0
        for number, step in enumerate(plan.steps if plan.trains_policy else ()):
            rate = policy.learning_rate
            grad_norms.append(self._optimizer_step(number, step))
        metrics.counts["samples_passed"] = len(plan.passes)
        means = metrics.means(sum(map(self.context.columns.weight_of_step, plan.steps)), policy.place.data)
        if plan.trains_policy:
            means |= {"grad_norm": sum(grad_norms) / len(grad_norms), "lr": rate} | policy.own_metrics()
        else:
            means = {name: value for name, value in means.items() if name not in OVER_THE_STEP}
        return means | of_critic | self._totals()

    def _totals(self) -> dict[str, float]:
        """Return the counts of the step, which are the same on all ranks, and the TIS weights of reused rollouts."""
        samples, plan = self.context.batch.samples, self.context.plan
        totals: dict[str, float] = {
            "optimizer_steps": len(plan.steps),
            "samples": len(plan.kept),
            "samples_left_over": len(samples) - len(plan.kept),
            "tokens": sum(samples[index].total_length for index in plan.kept),
            "trained_tokens": sum(self.context.columns.trained_tokens[index] for index in plan.kept),
        }
        if (share := self.context.policy.engine_routed([samples[index] for index in plan.kept])) is not None:
            totals["engine_routed_share"] = share
        if self._off_policy is not None:
            totals["recalled_share"] = sum(samples[index].reused for index in plan.kept) / len(plan.kept)
            totals |= self._off_policy.figures(self.context.policy.place.data)
        return totals

    def _train_critic(self, critic: CriticStep) -> dict[str, float]:
        columns, metrics = self.context.columns, self.context.metrics
        targets = ValueTargets(columns.values, columns.returns, columns.advantages, columns.masks, columns.denominators)
        with metrics.timed("critic"):
            return critic.train(targets, list(map(columns.weight_of_step, self.context.plan.steps)), metrics)

    def _optimizer_step(self, number: int, step: OptimizerStep) -> float:
        """Run an update; return the norm of the gradient before clipping."""
        context, policy = self.context, self.context.policy
        loss = LOSSES[context.settings.algorithm.loss_type](context, is_first=number == 0)
        divisor, batches = context.columns.weight_of_step(step), context.plan.micro_batches[number]

        def divided(output: object, members: list[int]) -> tuple[torch.Tensor, LossFigures]:
            value, figures = loss.loss(output, members)
            return value / divisor, figures

        policy.begin_update(context.batch.samples, context.columns.masks, step.indices)
        grad_norm, figures = policy.update(
            batches,
            loss.forward,
            divided,
            what=f"optimizer step {number + 1} of {len(context.plan.steps)}",
            timed=context.metrics.timed,
            before=lambda: context.settings.functions.notify(
                BEFORE_TRAIN_STEP, context.batch.step, number, *policy.handles
            ),
            size=UpdateSize(
                len(step.indices), sum(context.batch.samples[index].total_length for index in step.indices)
            ),
        )
        for members, of_batch in zip(batches, figures, strict=True):
            context.metrics.add(of_batch.metrics, sum(map(context.columns.weight, members)))
            if of_batch.before:
                self._measure(members, of_batch)
        return grad_norm

    def _measure(self, members: list[int], figures: LossFigures) -> None:
        """Compare the trainer's log-probs before the update with the engine's."""
        columns, metrics, algorithm = self.context.columns, self.context.metrics, self.context.settings.algorithm
        columns.before.update(zip(members, figures.before, strict=True))
        masks = columns.of(members, columns.masks)
        fresh = zip(masks, [columns.fresh[index] for index in members], strict=True)
        same = [torch.full_like(mask, is_fresh, dtype=torch.bool) for mask, is_fresh in fresh]
        before, engines = torch.cat(figures.before), torch.cat(figures.rollout)
        metrics.add_difference(before, engines, torch.cat(masks), torch.cat(same))
        if self._off_policy is not None:
            reused = zip(masks, [columns.samples[index].reused for index in members], strict=True)
            recalled = [(mask != 0) & is_reused for mask, is_reused in reused]
            correction = truncated(before, engines, algorithm.tis_clip_low, algorithm.tis_clip)
            self._off_policy.add(correction, torch.cat(recalled))
