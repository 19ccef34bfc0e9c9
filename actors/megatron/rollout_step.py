"""`RolloutStep`: train a batch, from rewards to updated weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from actors.megatron.critic_step import CriticStep, Targets
from actors.megatron.forward import Packed
from actors.megatron.frozen_model import REFERENCE
from actors.megatron.scores import Scores, rollout_or_own
from actors.megatron.trainee import Trainee
from actors.megatron.update import update
from actors.megatron.user_functions import (
    columns,
    own_advantages,
    own_loss,
    postprocessed,
    sum_of_sample_mean,
    whole_logits,
)
from actors.step.data_split import checked_batch, rollout_denominators
from actors.step.host_columns import on_host, shared, shared_or_same, to_device
from actors.step.step_metrics import OVER_THE_STEP, OffPolicyMetrics, StepMetrics
from schemas.errors import TrainerError
from slime_events.algorithms.advantages import compute_advantages, finished, moves, token_kls
from slime_events.algorithms.correction import OwnTerms
from slime_events.algorithms.objective import policy_objective, sft_objective, truncated
from slime_events.algorithms.packing import OptimizerStep, optimizer_steps
from slime_events.core.training.train_batch import TrainBatch
from slime_events.plugins.trainer_points import (
    ADVANTAGE,
    BEFORE_TRAIN_STEP,
    DATA,
    LOSS,
    REDUCER,
    TIS,
    UserFunction,
)


class RolloutStep:
    """A batch on a rank. The micro batches of each optimizer step are divided over data parallel ranks.

    Columns of the whole batch stay in host memory, where ranks of one machine share the arrays of the batch
    (`host_columns`). A micro batch's part goes to the device when the micro batch is trained.

    Order: reference and old log-probs if the settings need them; advantages of the whole batch; then for each optimizer
    step forward and backward over this rank's micro batches, the sum of gradients over ranks, and the update.

    Attributes by index into the batch, float32 [response] each: log-probs of the `reference` and the `teacher`, `old`
    log-probs from a scoring pass, log-probs `before` the update; `advantages`, `returns`, a critic's `values`,
    `entropies`. `left` has the columns that a user's function added, by name; `micro_batches` has this rank's micro
    batches by optimizer step.
    """

    def __init__(self, trainee: Trainee, batch: TrainBatch) -> None:
        """Raise TrainerError if a sample cannot be trained on, or if the batch fills no optimizer step."""
        architectures = trainee.architecture, *(frozen.architecture for frozen in trainee.frozen.values())
        batch = checked_batch(batch, min(architecture.vocab_size for architecture in architectures))
        self.trainee = trainee
        self.samples = batch.samples
        self.step = batch.step
        self.temperature = batch.temperature
        self.metrics = StepMetrics()
        self.steps = optimizer_steps(
            [sample.rollout for sample in batch.samples],
            trainee.settings.global_batch_size,
            trainee.settings.num_steps_per_rollout,
        )
        self.kept = [index for step in self.steps for index in step.indices]
        self.masks = [shared(sample.loss_mask) for sample in batch.samples]
        self.rollout = [shared(sample.rollout_log_probs) for sample in batch.samples]
        # Old actors have exactly the weights of the engines. For reused rollouts this is unknown.
        self.fresh = [
            not sample.reused and (bool(batch.old) or sample.oldest_version == sample.newest_version == batch.step)
            for sample in batch.samples
        ]
        reuses = any(sample.reused for sample in batch.samples)
        self.off_policy = OffPolicyMetrics(trainee.place.device) if reuses else None
        self.trained_tokens = [int(sample.loss_mask.sum()) for sample in batch.samples]
        self.denominators = batch.columns.get("rollout_mask_sums") or rollout_denominators(batch.samples)
        self.reference: dict[int, Tensor] = {}
        self.teacher: dict[int, Tensor] = {}
        self.old: dict[int, Tensor] = {}
        self.before: dict[int, Tensor] = {}
        self.advantages: dict[int, Tensor] = {}
        self.returns: dict[int, Tensor] = {}
        self.left = {name: dict(enumerate(map(shared_or_same, column))) for name, column in batch.columns.items()}
        self.entropies: dict[int, Tensor] | None = {} if trainee.algorithm.use_rollout_entropy else None
        self.scores = Scores(trainee, batch, self.kept, self.entropies)
        self.moving: dict[int, bool] = {}
        self.micro_batches: list[list[list[int]]] = []
        self.values: dict[int, Tensor] = {}
        self.critic: CriticStep | None = None
        if trainee.critic is not None:
            dealt = [self._deal(step.indices) for step in self.steps]
            self.critic = CriticStep(trainee, trainee.critic, batch.samples, dealt)

    def run(self) -> dict[str, float]:
        """Train, and return the metrics of the step."""
        with self.metrics.timed("scoring"):
            self._prepare()
        of_critic = self._train_critic(self.critic) if self.critic is not None else {}
        grad_norms = []
        rate = 0.0
        for number, step in enumerate(self.steps if self.trains_policy else ()):
            rate = self.trainee.optimizer.param_groups[0]["lr"]
            grad_norms.append(self._optimizer_step(number, step))
        self.metrics.counts["samples_passed"] = len(self.passes)
        metrics = self.metrics.means(sum(map(self._weight_of_step, self.steps)), self.trainee.place.data)
        if self.trains_policy:
            metrics |= {"grad_norm": sum(grad_norms) / len(grad_norms), "lr": rate}
        else:
            metrics = {name: value for name, value in metrics.items() if name not in OVER_THE_STEP}
        metrics |= of_critic | {
            "optimizer_steps": len(self.steps),
            "samples": len(self.kept),
            "samples_left_over": len(self.samples) - len(self.kept),
            "tokens": sum(self.samples[index].total_length for index in self.kept),
            "trained_tokens": sum(self.trained_tokens[index] for index in self.kept),
        }
        if self.off_policy is not None:
            metrics["recalled_share"] = sum(self.samples[index].reused for index in self.kept) / len(self.kept)
            metrics |= self.off_policy.figures(self.trainee.place.data)
        return metrics

    @property
    def trains_policy(self) -> bool:
        """Whether the step trains the policy, not only a critic."""
        return self.critic is None or self.step >= self.trainee.algorithm.num_critic_only_steps

    def _train_critic(self, critic: CriticStep) -> dict[str, float]:
        targets = Targets(self.values, self.returns, self.advantages, self.masks, self.denominators)
        with self.metrics.timed("critic"):
            return critic.train(targets, [self._weight_of_step(step) for step in self.steps], self.metrics)

    def passing(self, indices: Sequence[int]) -> list[int]:
        """Return the samples among `indices`, which are those of all ranks, that can change the weights."""
        if not self.trains_policy:
            return []
        algorithm, settings = self.trainee.algorithm, self.trainee.settings
        every = algorithm.entropy_coef != 0 or (algorithm.use_kl_loss and algorithm.kl_loss_coef != 0)
        every = every or not self._advantage_is_all
        if every or not settings.skip_zero_advantage:
            return list(indices)
        return [index for index in indices if self.moving[index]]

    @property
    def _advantage_is_all(self) -> bool:
        """Whether a sample with advantage 0 adds nothing to the loss. Unknown, and so false, with a user's loss."""
        functions = self.trainee.functions
        return self.trainee.algorithm.loss_type == "policy_loss" and not any(map(functions.at, (TIS, REDUCER)))

    @property
    def passes(self) -> list[int]:
        """The samples that this rank passes through the model, in batch order."""
        mine = {index for batches in self.micro_batches for members in batches for index in members}
        return [index for index in self.kept if index in mine]

    def _deal(self, indices: Sequence[int]) -> list[list[int]]:
        data = self.trainee.place.data
        return self.trainee.split(self.samples, indices, data.size())[data.rank()]

    def _prepare(self) -> None:
        """Compute log-probs before the update and under frozen models, if they are needed, and the advantages."""
        algorithm = self.trainee.algorithm
        functions, has_advantages = self.trainee.functions, algorithm.compute_advantages_and_returns
        own, postprocess = functions.at(ADVANTAGE) if has_advantages else None, functions.at(DATA)
        # A KL in the reward enters every advantage, and whitening mixes them: then every rank needs all log-probs. A
        # user's function may read all of them.
        whole = algorithm.kl_coef != 0 or algorithm.use_opd or own is not None
        whole = whole or (postprocess is not None and has_advantages)
        own_old = not algorithm.use_rollout_logprobs or algorithm.get_mismatch_metrics
        own_old = own_old or any(bool(torch.isnan(log_probs).any()) for log_probs in self.rollout)
        if whole:
            self.micro_batches = [self._deal(step.indices) for step in self.steps]
            mine = sorted(self.passes)
            if algorithm.kl_coef != 0 or REFERENCE in self.trainee.frozen:
                self.reference = self.scores.shared(self.scores.frozen(REFERENCE, mine))
            if own_old:
                self.old = self.scores.shared(self.scores.old(mine))
            if algorithm.use_opd:
                self._ask_teacher(mine)
        if self.critic is not None:
            self.values = self.scores.shared(self.critic.values())
        if has_advantages:
            self._compute_advantages(own)
        if postprocess is not None:
            self._postprocess(postprocess)
        if has_advantages:
            kept = [self.advantages[index] for index in self.kept], [self.masks[index] for index in self.kept]
            self.moving = dict(zip(self.kept, moves(*kept), strict=True))
        self.micro_batches = [self._deal(self.passing(step.indices)) for step in self.steps]
        if algorithm.use_kl_loss and not whole:
            self.reference = self.scores.frozen(REFERENCE, self.passes)
        # With a single update, its own forward pass gives the log-probs before the update.
        if own_old and not whole and self._looks_back:
            self.old = self.scores.old(self.passes)
        if self.entropies is not None:
            self._measure_entropy(self.entropies)

    @property
    def _looks_back(self) -> bool:
        """Whether the loss needs log-probs before the update that its own pass does not compute."""
        algorithm = self.trainee.algorithm
        if algorithm.loss_type == "policy_loss":
            return len(self.steps) > 1 or self.scores.has_older
        return algorithm.loss_type == "custom_loss" and algorithm.compute_advantages_and_returns

    def _compute_advantages(self, own: UserFunction | None) -> None:
        algorithm = self.trainee.algorithm
        before = [self._before(index) for index in self.kept]
        masks = [self.masks[index] for index in self.kept]
        references = [self.reference[index] for index in self.kept] if algorithm.kl_coef != 0 else None
        teachers = [self.teacher[index] for index in self.kept] if algorithm.use_opd else None
        if own is None:
            advantages, returns = compute_advantages(
                torch.tensor([self.samples[index].reward for index in self.kept]),
                before,
                references,
                masks,
                algorithm,
                values=[self.values[index] for index in self.kept] if self.critic is not None else None,
                teacher_log_probs=teachers,
                token_credit=[shared_or_same(self.samples[index].credit) for index in self.kept],
            )
        else:
            kl = to_device(token_kls(before, references, masks, algorithm), self.trainee.place.device)
            data = self._rollout_data() | {"kl": kl}
            advantages, returns = map(on_host, own_advantages(own, self.trainee.functions.args, data))
            advantages = finished(advantages, before, masks, algorithm, teacher_log_probs=teachers)
        self.advantages = dict(zip(self.kept, advantages, strict=True))
        self.returns = dict(zip(self.kept, returns, strict=True))

    def _before(self, index: int) -> Tensor:
        """Return a sample's log-probs [response] under the policy before the update, as the loss uses them."""
        rollout, own = self.rollout[index], self.old.get(index)
        if own is None:
            return rollout
        return rollout_or_own(rollout, own) if self.trainee.algorithm.use_rollout_logprobs else own

    def _postprocess(self, function: UserFunction) -> None:
        columns_after = postprocessed(function, self.trainee.functions.args, self.step, self._rollout_data())
        left = {name: dict(zip(self.kept, on_host(parts), strict=True)) for name, parts in columns_after.items()}
        self.advantages |= left.pop("advantages", {})
        self.returns |= left.pop("returns", {})
        self.old |= left.pop("log_probs", {})
        self.reference |= left.pop("ref_log_probs", {})
        before, sums = self.denominators or self.trained_tokens, left.pop("rollout_mask_sums", {})
        self.denominators = [float(sums.get(index, tokens)) for index, tokens in enumerate(before)]
        for index, mask in left["loss_masks"].items():
            self.masks[index], self.trained_tokens[index] = mask, int(mask.sum())
            self.rollout[index] = left["rollout_log_probs"][index]
        self.left |= left

    def _rollout_data(self) -> dict[str, Any]:
        data = self._columns(self.kept)
        return data | {"tokens": list(data["unconcat_tokens"])}

    def _columns(self, indices: Sequence[int]) -> dict[str, Any]:
        by_name: dict[str, dict[int, Any]] = {
            "rollout_mask_sums": dict(enumerate(self.denominators or map(float, self.trained_tokens))),
            "rollout_log_probs": dict(enumerate(self.rollout)),
            "log_probs": self.old,
            "ref_log_probs": self.reference,
            "teacher_log_probs": self.teacher,
            "advantages": self.advantages,
            "returns": self.returns,
            "values": self.values,
            "entropy": self.entropies or {},
        }
        by_name = self.left | {name: by_index for name, by_index in by_name.items() if by_index}
        return columns(self.samples, indices, self.trainee.place.device, **by_name)

    def _measure_entropy(self, entropies: dict[int, Tensor]) -> None:
        """Measure the policy's entropy before the update on this rank's samples."""
        mine = [index for step in self.steps for members in self._deal(step.indices) for index in members]
        if missing := [index for index in mine if index not in entropies]:
            self.scores.policy(missing)
        for index in mine:
            self._add_mean("rollout_entropy", index, entropies[index])

    def _add_mean(self, name: str, index: int, values: Tensor) -> None:
        """Add to a metric of the step the mean of values [response] over a sample's trained tokens, weighted."""
        mean = values.masked_fill(self.masks[index] == 0, 0.0).sum() / max(self.trained_tokens[index], 1)
        self.metrics.add_over_the_step(name, mean * self._weight(index))

    def _ask_teacher(self, mine: Sequence[int]) -> None:
        """Compute the teacher's log-probs of the whole step, and measure the reverse KL of this rank's samples."""
        self.teacher = self.scores.shared(self.scores.teacher(mine))
        for index in mine:
            self._add_mean("opd_reverse_kl", index, self._before(index) - self.teacher[index])

    def _optimizer_step(self, number: int, step: OptimizerStep) -> float:
        """Run an update; return the norm of the gradient before clipping."""
        trainee = self.trainee
        arguments = (self.step, number, [trainee.model], trainee.optimizer, trainee.scheduler)
        return update(
            trainee,
            self.micro_batches[number],
            lambda members: self._loss(members, first=number == 0) / self._weight_of_step(step),
            what=f"optimizer step {number + 1} of {len(self.steps)}",
            timed=self.metrics.timed,
            before=lambda: trainee.functions.notify(BEFORE_TRAIN_STEP, *arguments),
        )

    def _loss(self, members: list[int], *, first: bool) -> Tensor:
        by_type = {"policy_loss": self._policy_loss, "sft_loss": self._sft_loss, "custom_loss": self._own_loss}
        loss, figures = by_type[self.trainee.algorithm.loss_type](members, first)
        self.metrics.add(figures, sum(map(self._weight, members)))
        return loss

    def _packed(self, members: list[int]) -> Packed:
        packed = self.trainee.pack(self.samples, members)
        if self.trainee.settings.tree_packing:
            tokens = sum(self.samples[index].total_length for index in members)
            self.metrics.counts["tokens_shared"] += tokens - packed.token_ids.numel()
        return packed

    def _sft_loss(self, members: list[int], first: bool) -> tuple[Tensor, dict[str, Tensor]]:
        log_probs, _ = self.trainee.log_probs(self.trainee.model, self._packed(members), self.temperature)
        masks = self._of(members, self.masks)
        return sft_objective(log_probs, masks, self._denominators(members), self.trainee.algorithm)

    def _own_loss(self, members: list[int], first: bool) -> tuple[Tensor, dict[str, Tensor]]:
        trainee, masks, denominators = self.trainee, self._of(members, self.masks), self._denominators(members)
        function = trainee.functions.at(LOSS)
        if function is None:
            raise TrainerError("loss_type custom_loss needs custom_loss_function_path")
        packed = trainee.pack(self.samples, members)
        batch = self._columns(members) | {"tokens": packed.token_ids, "packed_seq_params": packed.packed}
        reduce = sum_of_sample_mean(masks, denominators, per_token=trainee.algorithm.calculate_per_token_loss)
        return own_loss(function, trainee.functions.args, batch, whole_logits(trainee, packed), reduce)

    def _of(self, members: Sequence[int], column: Sequence[Tensor] | Mapping[int, Tensor]) -> list[Tensor]:
        """Return the members' part of a column on the device, [response] each."""
        return to_device([column[index] for index in members], self.trainee.place.device)

    def _denominators(self, members: Sequence[int]) -> list[float] | None:
        return None if self.denominators is None else [self.denominators[index] for index in members]

    def _policy_loss(self, members: list[int], first: bool) -> tuple[Tensor, dict[str, Tensor]]:
        trainee, algorithm = self.trainee, self.trainee.algorithm
        packed, entropy_gradient = self._packed(members), algorithm.entropy_coef != 0
        log_probs, entropy = trainee.log_probs(
            trainee.model, packed, self.temperature, entropy_gradient=entropy_gradient
        )
        known_old = bool(self.old)
        old = self._of(members, self.old) if known_old else [part.detach() for part in log_probs]
        rollout = list(map(rollout_or_own, self._of(members, self.rollout), old))
        masks = self._of(members, self.masks)
        loss, figures = policy_objective(
            log_probs=log_probs,
            old_log_probs=old,
            rollout_log_probs=rollout,
            ref_log_probs=self._of(members, self.reference) if algorithm.use_kl_loss else None,
            advantages=self._of(members, self.advantages),
            loss_masks=masks,
            rollout_denoms=self._denominators(members),
            entropy=entropy,
            settings=algorithm,
            own=self._own_terms(members),
        )
        del figures["train_rollout_logprob_abs_diff"]  # measured below, before the first update only
        figures["entropy"] = figures.pop("entropy_loss")
        if first or known_old:
            self.before.update(zip(members, old, strict=True))
            fresh = zip(masks, [self.fresh[index] for index in members], strict=True)
            same = [torch.full_like(mask, is_fresh, dtype=torch.bool) for mask, is_fresh in fresh]
            before, engines = torch.cat(old), torch.cat(rollout)
            self.metrics.add_difference(before, engines, torch.cat(masks), torch.cat(same))
            if self.off_policy is not None:
                reused = zip(masks, [self.samples[index].reused for index in members], strict=True)
                recalled = [(mask != 0) & is_reused for mask, is_reused in reused]
                correction = truncated(before, engines, algorithm.tis_clip_low, algorithm.tis_clip)
                self.off_policy.add(correction, torch.cat(recalled))
        return loss, figures

    def _own_terms(self, members: Sequence[int]) -> OwnTerms | None:
        functions = self.trainee.functions
        tis, reducer = functions.at(TIS), functions.at(REDUCER)
        if tis is None and reducer is None:
            return None
        return OwnTerms(functions.args, [self.samples[index].total_length for index in members], tis, reducer)

    def _weight(self, index: int) -> float:
        """Return a sample's weight in the objective's sums."""
        tokens = self.trained_tokens[index]
        if self.trainee.algorithm.calculate_per_token_loss:
            return tokens
        denominator = tokens if self.denominators is None else self.denominators[index]
        return tokens / max(denominator, 1)

    def _weight_of_step(self, step: OptimizerStep) -> float:
        """Return the divisor of the objective's sum over all ranks: rollouts, or trained tokens."""
        if self.trainee.algorithm.calculate_per_token_loss:
            return max(1, sum(self.trained_tokens[index] for index in step.indices))
        return step.rollouts
