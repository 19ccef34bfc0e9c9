"""`LOSSES`: the losses of a rollout step by `--loss-type`: forward pass and loss of a micro batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, NamedTuple

from torch import Tensor

from actors.step.policy import Outputs, Packed
from actors.step.schedule import Output
from actors.step.scores import rollout_or_own
from actors.step.step_context import StepContext
from actors.step.user_functions import own_loss, sum_of_sample_mean
from schemas.doc import doc
from schemas.errors import TrainerError
from slime_events.algorithms.correction import OwnTerms
from slime_events.algorithms.objective import policy_objective, sft_objective
from slime_events.plugins.trainer_points import LOSS, REDUCER, TIS


class LossFigures(NamedTuple):
    """Figures of a micro batch, without gradient, on the device."""

    metrics: Annotated[dict[str, Tensor], doc("weighted sums over the samples by name")]
    before: Annotated[list[Tensor], doc("log-probs before the update, [response] each; empty if they are not measured")]
    rollout: Annotated[list[Tensor], doc("the engine's log-probs in the same form")]


class RolloutLoss(ABC, Generic[Output]):
    """A loss over the samples of a step. is_first: the weights are those before the step's first update."""

    def __init__(self, context: StepContext, *, is_first: bool) -> None:
        self._context, self._is_first = context, is_first

    @abstractmethod
    def forward(self, members: list[int]) -> Output:
        """Run the forward pass of a micro batch."""

    @abstractmethod
    def loss(self, output: Output, members: list[int]) -> tuple[Tensor, LossFigures]:
        """Return the loss as a weighted sum over the samples, and its figures."""


class PolicyLoss(RolloutLoss[Outputs]):
    def forward(self, members: list[int]) -> Outputs:
        context, entropy_gradient = self._context, self._context.settings.algorithm.entropy_coef != 0
        packed, temperature = context.packed(members), context.batch.temperature
        return context.policy.forward(packed, temperature, entropy_gradient=entropy_gradient)

    def loss(self, output: Outputs, members: list[int]) -> tuple[Tensor, LossFigures]:
        columns, algorithm = self._context.columns, self._context.settings.algorithm
        known_old = bool(columns.old)
        old = columns.of(members, columns.old) if known_old else [part.detach() for part in output.log_probs]
        rollout = list(map(rollout_or_own, columns.of(members, columns.rollout), old))
        loss, metrics = policy_objective(
            log_probs=output.log_probs,
            old_log_probs=old,
            rollout_log_probs=rollout,
            ref_log_probs=columns.of(members, columns.reference) if algorithm.use_kl_loss else None,
            advantages=columns.of(members, columns.advantages),
            loss_masks=columns.of(members, columns.masks),
            rollout_denoms=columns.denominators_of(members),
            entropy=output.entropy,
            settings=algorithm,
            own=self._own_terms(members),
        )
        del metrics["train_rollout_logprob_abs_diff"]  # measured from `before`, before the first update only
        metrics["entropy"] = metrics.pop("entropy_loss")
        if self._is_first or known_old:
            return loss, LossFigures(metrics, old, rollout)
        return loss, LossFigures(metrics, [], [])

    def _own_terms(self, members: Sequence[int]) -> OwnTerms | None:
        functions = self._context.settings.functions
        tis, reducer = functions.at(TIS), functions.at(REDUCER)
        if tis is None and reducer is None:
            return None
        lengths = [self._context.batch.samples[index].total_length for index in members]
        return OwnTerms(functions.args, lengths, tis, reducer)


class SftLoss(RolloutLoss[Outputs]):
    def forward(self, members: list[int]) -> Outputs:
        return self._context.policy.forward(self._context.packed(members), self._context.batch.temperature)

    def loss(self, output: Outputs, members: list[int]) -> tuple[Tensor, LossFigures]:
        columns, algorithm = self._context.columns, self._context.settings.algorithm
        masks, denominators = columns.of(members, columns.masks), columns.denominators_of(members)
        loss, metrics = sft_objective(output.log_probs, masks, denominators, algorithm)
        return loss, LossFigures(metrics, [], [])


class WholeOutput(NamedTuple):
    """The inputs of a user's loss."""

    packed: Packed
    logits: Annotated[Tensor, doc("float32 [1, tokens, vocabulary / tensor parallel ranks]")]


class UserLoss(RolloutLoss[WholeOutput]):
    def __init__(self, context: StepContext, *, is_first: bool) -> None:
        """Raise TrainerError if the settings name no function."""
        super().__init__(context, is_first=is_first)
        function = context.settings.functions.at(LOSS)
        if function is None:
            raise TrainerError("loss_type custom_loss needs custom_loss_function_path")
        self._function = function

    def forward(self, members: list[int]) -> WholeOutput:
        packed = self._context.policy.pack(self._context.batch.samples, members)
        return WholeOutput(packed, self._context.policy.logits(packed))

    def loss(self, output: WholeOutput, members: list[int]) -> tuple[Tensor, LossFigures]:
        columns, settings, packed = self._context.columns, self._context.settings, output.packed
        batch = columns.of_user(members) | {"tokens": packed.token_ids, "packed_seq_params": packed.packed}
        masks, denominators = columns.of(members, columns.masks), columns.denominators_of(members)
        reduce = sum_of_sample_mean(masks, denominators, per_token=settings.algorithm.calculate_per_token_loss)
        loss, metrics = own_loss(self._function, settings.functions.args, batch, output.logits, reduce)
        return loss, LossFigures(metrics, [], [])


LOSSES: Mapping[str, type[RolloutLoss[Any]]] = {
    "policy_loss": PolicyLoss,
    "sft_loss": SftLoss,
    "custom_loss": UserLoss,
}
