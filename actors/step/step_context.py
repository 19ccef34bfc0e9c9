"""`StepContext`: what the parts of a rollout step share."""

from dataclasses import dataclass

from actors.step.policy import Packed, Policy
from actors.step.step_columns import StepColumns
from actors.step.step_metrics import StepMetrics
from actors.step.step_plan import StepPlan
from actors.step.step_settings import StepSettings
from slime_events.core.training.train_batch import TrainBatch


@dataclass(frozen=True, slots=True)
class StepContext:
    """A batch on a rank."""

    policy: Policy
    settings: StepSettings
    batch: TrainBatch
    columns: StepColumns
    plan: StepPlan
    metrics: StepMetrics

    def packed(self, members: list[int]) -> Packed:
        """Pack a micro batch, and count the tokens that its samples share."""
        packed = self.policy.pack(self.batch.samples, members)
        if self.settings.trainer.tree_packing:
            tokens = sum(self.batch.samples[index].total_length for index in members)
            self.metrics.counts["tokens_shared"] += tokens - packed.token_ids.numel()
        return packed
