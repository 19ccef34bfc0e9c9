"""`StepColumns`: the columns of a batch in a rollout step, in host memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from actors.step.data_split import rollout_denominators
from actors.step.host_columns import on_host, shared, shared_or_same, to_device
from actors.step.policy import OfSamples
from actors.step.scores import rollout_or_own
from actors.step.user_functions import columns
from slime_events.algorithms.packing import OptimizerStep
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.training.train_batch import TrainBatch


class StepColumns:
    """Columns by index into the batch, and the weight of each sample in the objective.

    Ranks of one machine share the arrays of the batch (`host_columns`). A micro batch's part goes to the device when
    the micro batch is trained.

    Attributes, float32 [response] each: log-probs of the `reference` and the `teacher`, `old` log-probs from a scoring
    pass, log-probs `before` the update; `advantages`, `returns`, a critic's `values`, `entropies`. `left` has the
    columns that a user's function added, by name.
    """

    def __init__(self, batch: TrainBatch, algorithm: AlgorithmSettings, device: torch.device) -> None:
        """device: where micro batches are trained."""
        self.samples = batch.samples
        self.masks = [shared(sample.loss_mask) for sample in batch.samples]
        self.rollout = [shared(sample.rollout_log_probs) for sample in batch.samples]
        # Old actors have exactly the weights of the engines. For reused rollouts this is unknown.
        self.fresh = [
            not sample.reused and (bool(batch.old) or sample.oldest_version == sample.newest_version == batch.step)
            for sample in batch.samples
        ]
        self.trained_tokens = [int(sample.loss_mask.sum()) for sample in batch.samples]
        self.denominators = batch.columns.get("rollout_mask_sums") or rollout_denominators(batch.samples)
        self.reference: OfSamples = {}
        self.teacher: OfSamples = {}
        self.old: OfSamples = {}
        self.before: OfSamples = {}
        self.advantages: OfSamples = {}
        self.returns: OfSamples = {}
        self.values: OfSamples = {}
        self.left = {name: dict(enumerate(map(shared_or_same, column))) for name, column in batch.columns.items()}
        self.entropies: OfSamples | None = {} if algorithm.use_rollout_entropy else None
        self._algorithm, self._device = algorithm, device

    def of(self, members: Sequence[int], column: Sequence[Tensor] | Mapping[int, Tensor]) -> list[Tensor]:
        """Return the members' part of a column on the device, [response] each."""
        return to_device([column[index] for index in members], self._device)

    def denominators_of(self, members: Sequence[int]) -> list[float] | None:
        """Return the trained tokens of each member's rollout; None if every rollout has a single sample."""
        return None if self.denominators is None else [self.denominators[index] for index in members]

    def before_update(self, index: int) -> Tensor:
        """Return a sample's log-probs [response] under the policy before the update, as the loss uses them."""
        rollout, own = self.rollout[index], self.old.get(index)
        if own is None:
            return rollout
        return rollout_or_own(rollout, own) if self._algorithm.use_rollout_logprobs else own

    def weight(self, index: int) -> float:
        """Return a sample's weight in the objective's sums."""
        tokens = self.trained_tokens[index]
        if self._algorithm.calculate_per_token_loss:
            return tokens
        denominator = tokens if self.denominators is None else self.denominators[index]
        return tokens / max(denominator, 1)

    def weight_of_step(self, step: OptimizerStep) -> float:
        """Return the divisor of the objective's sum over all ranks: rollouts, or trained tokens."""
        if self._algorithm.calculate_per_token_loss:
            return max(1, sum(self.trained_tokens[index] for index in step.indices))
        return step.rollouts

    def weighted_mean(self, index: int, values: Tensor) -> Tensor:
        """Return the mean of values [response] over a sample's trained tokens, times the sample's weight."""
        mean = values.masked_fill(self.masks[index] == 0, 0.0).sum() / max(self.trained_tokens[index], 1)
        return mean * self.weight(index)

    def of_user(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return samples under slime's names for a user's function; see `user_functions.columns`."""
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
        return columns(self.samples, indices, self._device, **by_name)

    def rollout_data(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return `of_user`, with the tokens under the name that they have in slime's rollout data."""
        data = self.of_user(indices)
        return data | {"tokens": list(data["unconcat_tokens"])}

    def replace(self, indices: Sequence[int], columns_after: Mapping[str, Sequence[Any]]) -> None:
        """Take the columns that a user's function left, in the order of `indices`."""
        left = {name: dict(zip(indices, on_host(parts), strict=True)) for name, parts in columns_after.items()}
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
