"""`PastVersions`: the weight versions that a step needs besides its own, for a reference that follows the policy and
for old actors.

They follow from the step's number and its batch, so training a step again needs the same versions.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from schemas.doc import doc
from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.rollout import staleness_bound
from slime_events.core.config.settings import TrainSettings
from slime_events.core.training.train_batch import TrainBatch


class PastVersions(NamedTuple):
    """The rule by which a step needs older versions."""

    every: Annotated[
        int, doc("steps after which the policy replaces the reference (`ref_update_interval`); 0: never")
    ] = 0
    behind: Annotated[
        int, doc("with `keep_old_actor`: how many versions a trained token may be behind its step; 0 without it")
    ] = 0

    @classmethod
    def of(cls, settings: TrainSettings) -> PastVersions:
        """Return the rule of a run's settings."""
        algorithm, rollout = settings.algorithm, settings.rollout
        follows = estimator_of(algorithm).needs_reference(algorithm)
        behind = staleness_bound(
            max_staleness=rollout.max_staleness,
            publish_every=settings.trainer.update_weights_interval,
            draw=rollout.over_sampling_batch_size,
            groups=rollout.rollout_batch_size,
        )
        keeps = algorithm.keep_old_actor and not algorithm.use_rollout_logprobs
        return cls((algorithm.ref_update_interval or 0) * follows, behind * keeps)

    def reference(self, step: int, first: int) -> int | None:
        """Return the version of the reference at a step; None if it is the loaded model.

        first: the run's first version, which is the first reference of a branch.
        """
        if not self.every:
            return None
        return max(step - step % self.every, first) or None

    def old(self, batch: TrainBatch) -> list[int]:
        """Return the versions, except the step's own, that made tokens of the batch, in ascending order."""
        if not self.behind:
            return []
        versions = {span.version for sample in batch.samples for span in sample.spans}
        return sorted(versions - {batch.step})

    def before(self, step: int, first: int) -> frozenset[int]:
        """Return the versions before a step's own that this step or a later one may need."""
        reference = self.reference(step, first)
        old = range(max(first, step - self.behind), step)
        return frozenset(old) | ({reference} if reference is not None and reference < step else set())


OLD_ACTOR = "old_actor"


def old_actor(version: int) -> str:
    """Return the name of an older policy in `step.committed`."""
    return f"{OLD_ACTOR} v{version}"


def old_version(name: str) -> int | None:
    """Return the version of an older policy by its name; None for any other model."""
    version = name.removeprefix(f"{OLD_ACTOR} v")
    return int(version) if version != name and version.isdecimal() else None


NO_PAST = PastVersions()
"""The rule of a run that needs no older versions."""
