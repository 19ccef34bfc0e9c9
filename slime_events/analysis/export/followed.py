"""`FollowedSamples`: the samples of a run that follows another: made there, trained here."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.groups import GroupRejected, RejectionCause
from slime_events.analysis.export.sample import ExportedSample
from slime_events.analysis.export.samples import Samples


class FollowedSamples:
    """Reads the followed run's log. batches: those of the run that follows, by step: its batch of a step takes the
    place of the other's. What is left of that one, and what was refused and is not taken, is rejected; a sample that is
    left out of a group which is trained is neither. Evaluations are those of the other run, and left out.
    """

    def __init__(self, run: str, samples: Samples, batches: Mapping[int, BatchSealed]) -> None:
        self._run, self._samples, self._batches = run, samples, batches
        self._refused: dict[str, GroupRejected] = {}

    def apply(self, event: Event, position: int) -> list[ExportedSample]:
        """Take in the followed run's next event; the samples that are done with by it."""
        match event:
            case GroupRejected():
                self._refused[event.group] = event
                return []
            case BatchSealed():
                return self._seal(event, position)
            case EvalCompleted():
                self._samples.apply(event, position)
                return []
        return self._samples.apply(event, position)

    def _seal(self, other: BatchSealed, position: int) -> list[ExportedSample]:
        mine = self._batches.get(other.step)
        if mine is None:  # of before the run began, or not trained yet
            self._samples.apply(other, position)
            for refused in self._refused.values():
                self._samples.apply(refused, position)
            self._refused.clear()
            return []
        found: list[ExportedSample] = []
        for group in other.groups:
            samples = tuple(sample for sample in other.samples if sample.startswith(f"{group}-s"))
            reason = f"run {self._run} does not train on it"
            self._refused[group] = GroupRejected(
                group=group, cause=RejectionCause.FILTER, reason=reason, samples=samples
            )
        for group, refused in self._refused.items():
            if group not in mine.groups:
                found += self._samples.apply(refused, position)
        self._refused.clear()
        graded = dict(zip(mine.samples, mine.raw_rewards, strict=True))
        return found + [structs.replace(one, reward=graded[one.sample]) for one in self._samples.apply(mine, position)]
