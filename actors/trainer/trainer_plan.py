"""`TrainerPlan`: what a trainer does at which version."""

from __future__ import annotations

from dataclasses import dataclass

from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.save_steps import NEVER, SaveSteps
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.training.past_versions import NO_PAST, PastVersions
from storage.weights.store import Retention


@dataclass(frozen=True, slots=True)
class TrainerPlan:
    """steps: of the run; weights of the last are published. checkpoints: the folder that they are saved into.
    publish_every: versions. saves: of which a checkpoint is saved. retention: which weights stay, beside those of a
    checkpoint that does; None keeps all. checkpoint_retention: which checkpoints stay. exact: a step that is trained
    again and comes out otherwise ends the run. shows: a user's function is shown each version before it is published.
    save_hf: path with {rollout_id}, which the weights of a checkpoint are copied to. async_save: the next step does not
    wait for a checkpoint. retrains: steps that a trainer that takes over trains again; -1: any number, as a critic's
    weights, and what a client chose for each step, are in the checkpoints and the steps alone.
    past: versions that steps need beside their own. on_demand: versions go to the engines when a client asks for them.
    """

    steps: int
    checkpoints: str
    publish_every: int = 1
    saves: SaveSteps = NEVER
    retention: Retention | None = None
    checkpoint_retention: Retention | None = None
    exact: bool = False
    retrains: int = -1
    shows: bool = False
    save_hf: str | None = None
    past: PastVersions = NO_PAST
    on_demand: bool = False
    async_save: bool = False

    @classmethod
    def of(cls, settings: TrainSettings, checkpoints: str, *, evaluated: int = 0) -> TrainerPlan:
        """As the settings have it. checkpoints: where they name no folder. evaluated: as `Retention` has it."""
        trainer = settings.trainer
        weights = Retention(trainer.keep_weights, trainer.keep_weights_every or 0, evaluated)
        saved = Retention(trainer.keep_checkpoints, trainer.keep_checkpoints_every or 0)
        return cls(
            settings.rollout.num_rollout or 0,
            trainer.save or checkpoints,
            trainer.update_weights_interval,
            trainer.saves,
            weights if weights.newest else None,
            saved if saved.newest else None,
            trainer.exact,
            -1 if settings.run.tinker or estimator_of(settings.algorithm).needs_values else trainer.retrains,
            trainer.custom_update_weight_post_write_path is not None,
            trainer.save_hf,
            PastVersions.of(settings),
            settings.run.tinker is not None,
            trainer.async_save,
        )

    @property
    def last_save(self) -> int:
        """The newest version of the run that a checkpoint is due of."""
        return self.saves.newest(self.steps)

    def publishes(self, version: int) -> bool:
        """Whether a version that a step has made goes to the engines."""
        return not self.on_demand and (version % self.publish_every == 0 or version == self.steps)
