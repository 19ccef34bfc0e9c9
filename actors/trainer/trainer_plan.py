"""`TrainerPlan`: which versions a trainer publishes, saves and keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.save_steps import NEVER, SaveSteps
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.training.past_versions import NO_PAST, PastVersions
from storage.weights.store import Retention


@dataclass(frozen=True, slots=True)
class TrainerPlan:
    """The trainer's settings by version. The weights of the last step are always published."""

    steps: Annotated[int, doc("Steps of the run.")]
    checkpoints: Annotated[str, doc("Folder of checkpoints.")]
    publish_every: Annotated[int, doc("Publish each version that is a multiple.")] = 1
    saves: Annotated[SaveSteps, doc("Versions of which a checkpoint is saved.")] = NEVER
    retention: Annotated[
        Retention | None, doc("Weights to keep, besides those of kept checkpoints; None keeps all.")
    ] = None
    checkpoint_retention: Annotated[Retention | None, doc("Checkpoints to keep; None keeps all.")] = None
    exact: Annotated[bool, doc("End the run if retraining a step gives a different result.")] = False
    retrains: Annotated[
        int,
        doc(
            "Most steps that a trainer that takes over retrains. -1 is no limit, for a run whose state is only in "
            "checkpoints and steps: a critic's weights, or a client's choices."
        ),
    ] = -1
    shows: Annotated[bool, doc("Call the user's function with each version before it is published.")] = False
    save_hf: Annotated[str | None, doc("Path, with {rollout_id}, for copies of a checkpoint's weights.")] = None
    past: Annotated[PastVersions, doc("Versions that steps need besides their own.")] = NO_PAST
    on_demand: Annotated[bool, doc("Publish only versions that a client requests.")] = False
    async_save: Annotated[bool, doc("Train the next step while a checkpoint is written.")] = False
    memory: Annotated[
        str | None,
        doc("Folder in memory for versions that are stored after their commit; None: store each version before."),
    ] = None

    @classmethod
    def of(cls, settings: TrainSettings, checkpoints: str, *, evaluated: int = 0) -> TrainerPlan:
        """Return the plan of a run's settings.

        checkpoints: folder of checkpoints if the settings name none. evaluated: see `Retention`.
        """
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
        """The newest version of the run that needs a checkpoint."""
        return self.saves.newest(self.steps)

    def publishes(self, version: int) -> bool:
        """Return whether a version goes to the engines when its step is committed."""
        return not self.on_demand and (version % self.publish_every == 0 or version == self.steps)
