"""`Preparation`: log-probs before the update, advantages and micro batches of a rollout step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from actors.step.critic_step import CriticStep
from actors.step.host_columns import on_host, shared_or_same, to_device
from actors.step.policy import REFERENCE, OfSamples
from actors.step.scores import Scores
from actors.step.step_context import StepContext
from actors.step.user_functions import own_advantages, postprocessed
from schemas.doc import doc
from slime_events.algorithms.advantages import compute_advantages, finished, token_kls
from slime_events.plugins.trainer_points import ADVANTAGE, DATA, UserFunction


@dataclass(frozen=True, slots=True)
class Preparation:
    """Order: reference and old log-probs if the settings need them, advantages of the whole batch, micro batches."""

    context: StepContext
    scores: Scores
    critic: Annotated[CriticStep | None, doc("the critic's part of the step")]

    def run(self) -> None:
        """Fill the columns and the plan of the step."""
        columns, plan, settings = self.context.columns, self.context.plan, self.context.settings
        algorithm, functions = settings.algorithm, settings.functions
        has_advantages = algorithm.compute_advantages_and_returns
        own, postprocess = functions.at(ADVANTAGE) if has_advantages else None, functions.at(DATA)
        # A KL in the reward enters every advantage, and whitening mixes them: then every rank needs all log-probs. A
        # user's function may read all of them.
        whole = algorithm.kl_coef != 0 or algorithm.use_opd or own is not None
        whole = whole or (postprocess is not None and has_advantages)
        own_old = not algorithm.use_rollout_logprobs or algorithm.get_mismatch_metrics
        own_old = own_old or any(bool(torch.isnan(log_probs).any()) for log_probs in columns.rollout)
        if whole:
            plan.micro_batches = plan.deal_all()
            self._score_all(own_old=own_old)
        if self.critic is not None:
            columns.values = self.scores.shared(self.critic.values())
        if has_advantages:
            self._compute_advantages(own)
        if postprocess is not None:
            data = columns.rollout_data(plan.kept)
            columns.replace(plan.kept, postprocessed(postprocess, functions.args, self.context.batch.step, data))
        if has_advantages:
            plan.note_advantages(_of(plan.kept, columns.advantages), _of(plan.kept, columns.masks))
        plan.micro_batches = plan.deal_passing()
        if algorithm.use_kl_loss and not whole:
            columns.reference = self.scores.frozen(REFERENCE, plan.passes)
        # With a single update, its own forward pass gives the log-probs before the update.
        if own_old and not whole and self._looks_back:
            columns.old = self.scores.old(plan.passes)
        elif self._replays_routing:
            self.scores.policy(plan.passes)  # to record the experts of the samples that this rank trains on
        if columns.entropies is not None:
            self._measure_entropy(columns.entropies)

    @property
    def _looks_back(self) -> bool:
        """Whether the loss needs log-probs before the update that its own pass does not compute."""
        algorithm = self.context.settings.algorithm
        if algorithm.loss_type == "policy_loss":
            return len(self.context.plan.steps) > 1 or self.scores.has_older
        return algorithm.loss_type == "custom_loss" and algorithm.compute_advantages_and_returns

    @property
    def _replays_routing(self) -> bool:
        """Whether later updates of the step use the experts that routers chose before the first."""
        return self.context.policy.replays_routing and len(self.context.plan.steps) > 1

    def _score_all(self, *, own_old: bool) -> None:
        """Compute the log-probs of all samples on all ranks."""
        columns, algorithm = self.context.columns, self.context.settings.algorithm
        mine = sorted(self.context.plan.passes)
        if algorithm.kl_coef != 0 or self.context.policy.frozen_model(REFERENCE) is not None:
            columns.reference = self.scores.shared(self.scores.frozen(REFERENCE, mine))
        if own_old:
            columns.old = self.scores.shared(self.scores.old(mine))
        if algorithm.use_opd:
            columns.teacher = self.scores.shared(self.scores.teacher(mine))
            for index in mine:
                self._add_mean("opd_reverse_kl", index, columns.before_update(index) - columns.teacher[index])

    def _compute_advantages(self, own: UserFunction | None) -> None:
        columns, kept, algorithm = self.context.columns, self.context.plan.kept, self.context.settings.algorithm
        before = [columns.before_update(index) for index in kept]
        masks = _of(kept, columns.masks)
        references = _of(kept, columns.reference) if algorithm.kl_coef != 0 else None
        teachers = _of(kept, columns.teacher) if algorithm.use_opd else None
        if own is None:
            advantages, returns = compute_advantages(
                torch.tensor([columns.samples[index].reward for index in kept]),
                before,
                references,
                masks,
                algorithm,
                values=_of(kept, columns.values) if self.critic is not None else None,
                teacher_log_probs=teachers,
                token_credit=[shared_or_same(columns.samples[index].credit) for index in kept],
            )
        else:
            kl = to_device(token_kls(before, references, masks, algorithm), self.context.policy.place.device)
            data = columns.rollout_data(kept) | {"kl": kl}
            advantages, returns = map(on_host, own_advantages(own, self.context.settings.functions.args, data))
            advantages = finished(advantages, before, masks, algorithm, teacher_log_probs=teachers)
        columns.advantages = dict(zip(kept, advantages, strict=True))
        columns.returns = dict(zip(kept, returns, strict=True))

    def _measure_entropy(self, entropies: OfSamples) -> None:
        """Measure the policy's entropy before the update on this rank's samples."""
        mine = [index for batches in self.context.plan.deal_all() for members in batches for index in members]
        if missing := [index for index in mine if index not in entropies]:
            self.scores.policy(missing)
        for index in mine:
            self._add_mean("rollout_entropy", index, entropies[index])

    def _add_mean(self, name: str, index: int, values: Tensor) -> None:
        """Add a sample's mean of values [response] to a metric over the whole step."""
        self.context.metrics.add_over_the_step(name, self.context.columns.weighted_mean(index, values))


def _of(indices: Sequence[int], column: Sequence[Tensor] | OfSamples) -> list[Tensor]:
    return [column[index] for index in indices]
