"""`StepPlan`: the optimizer steps of a batch, and this rank's micro batches in each."""

from collections.abc import Sequence

from torch import Tensor

from actors.step.policy import Policy
from actors.step.step_settings import StepSettings
from slime_events.algorithms.advantages import moves
from slime_events.algorithms.packing import optimizer_steps
from slime_events.core.training.train_batch import TrainBatch
from slime_events.plugins.trainer_points import REDUCER, TIS


class StepPlan:
    """The samples of each optimizer step are divided over data parallel ranks.

    `steps`: the optimizer steps. `kept`: the samples of all steps. `micro_batches`: those of this rank, by optimizer
    step. `trains_policy`: whether the step trains the policy, not only a critic.
    """

    def __init__(self, policy: Policy, settings: StepSettings, batch: TrainBatch) -> None:
        """Raise TrainerError if the batch fills no optimizer step."""
        self._policy, self._settings, self._samples = policy, settings, batch.samples
        self.steps = optimizer_steps(
            [sample.rollout for sample in batch.samples],
            settings.trainer.global_batch_size,
            settings.trainer.num_steps_per_rollout,
        )
        self.kept = [index for step in self.steps for index in step.indices]
        self.trains_policy = policy.critic is None or batch.step >= settings.algorithm.num_critic_only_steps
        self.micro_batches: list[list[list[int]]] = []
        self._moving: dict[int, bool] = {}

    def deal_all(self) -> list[list[list[int]]]:
        """Return this rank's micro batches by optimizer step, if all samples are passed through the model."""
        return [self._policy.deal(self._samples, step.indices) for step in self.steps]

    def deal_passing(self) -> list[list[list[int]]]:
        """Return this rank's micro batches by optimizer step, of the samples that can change the weights."""
        return [self._policy.deal(self._samples, self.passing(step.indices)) for step in self.steps]

    def note_advantages(self, advantages: list[Tensor], masks: list[Tensor]) -> None:
        """Remember which of the kept samples have an advantage other than 0."""
        self._moving = dict(zip(self.kept, moves(advantages, masks), strict=True))

    def passing(self, indices: Sequence[int]) -> list[int]:
        """Return the samples among `indices`, which are those of all ranks, that can change the weights."""
        if not self.trains_policy:
            return []
        algorithm = self._settings.algorithm
        every = algorithm.entropy_coef != 0 or (algorithm.use_kl_loss and algorithm.kl_loss_coef != 0)
        every = every or not self._advantage_is_all or self._settings.trainer.enable_mtp_training
        if every or not self._settings.trainer.skip_zero_advantage:
            return list(indices)
        return [index for index in indices if self._moving[index]]

    @property
    def _advantage_is_all(self) -> bool:
        """Whether a sample with advantage 0 adds nothing to the loss. Unknown, and so false, with a user's loss."""
        functions = self._settings.functions
        return self._settings.algorithm.loss_type == "policy_loss" and not any(map(functions.at, (TIS, REDUCER)))

    @property
    def passes(self) -> list[int]:
        """The samples that this rank passes through the model, in batch order."""
        mine = {index for batches in self.micro_batches for members in batches for index in members}
        return [index for index in self.kept if index in mine]
