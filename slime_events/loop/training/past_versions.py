"""`PastVersions`: the weight versions that a step needs beside its own: those of a reference that follows the policy,
and of old actors.

Which they are follows from the step's number and its batch, so whoever trains a step again needs the same.
"""

from __future__ import annotations

from typing import NamedTuple

from slime_events.algorithms.estimators import estimator_of
from slime_events.core.config.rollout import staleness_bound
from slime_events.core.config.settings import TrainSettings
from slime_events.core.train_batch import TrainBatch


class PastVersions(NamedTuple):
    """every: steps after which the reference is the policy (`ref_update_interval`); 0: it stays. behind: with
    `keep_old_actor` the versions that a trained token may be older than its step; else 0.
    """

    every: int = 0
    behind: int = 0

    @classmethod
    def of(cls, settings: TrainSettings) -> PastVersions:
        """As the settings have it."""
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
        """The version that the reference is at a step; None: as it was loaded. first: the run's first version, which a
        branch's reference begins with.
        """
        if not self.every:
            return None
        return max(step - step % self.every, first) or None

    def old(self, batch: TrainBatch) -> list[int]:
        """The versions, other than the step's own, that made tokens of the batch, ascending."""
        if not self.behind:
            return []
        made = {span.version for sample in batch.samples for span in sample.spans}
        return sorted(made - {batch.step})

    def before(self, step: int, first: int) -> frozenset[int]:
        """Versions before a step's own that it, or a later one, may need."""
        reference = self.reference(step, first)
        old = range(max(first, step - self.behind), step)
        return frozenset(old) | ({reference} if reference is not None and reference < step else set())


OLD_ACTOR = "old_actor"


def old_actor(version: int) -> str:
    """What `step.committed` calls an older policy that was asked."""
    return f"{OLD_ACTOR} v{version}"


def old_version(name: str) -> int | None:
    """Its version; None for any other model."""
    version = name.removeprefix(f"{OLD_ACTOR} v")
    return int(version) if version != name and version.isdecimal() else None


NO_PAST = PastVersions()
"""Of most runs."""
