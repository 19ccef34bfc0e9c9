"""`SampleFacts`, `GroupFacts`: what a `Ledger` holds of one sample, and of one group."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from schemas.event import Purpose
from schemas.recorded import Recalled
from schemas.rollouts import WeightSpan


class Fate(enum.StrEnum):
    """Where a rollout stands."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    FAILED = "failed"
    COMPLETED = "completed"


@dataclass(slots=True)
class SampleFacts:
    """One sample. min_version, max_version: the weights that were asked for last. ended: position of its
    rollout.completed. reward: as assigned; graded: position of its outcome. rollout: the sample that was asked for,
    where this is a further one.
    """

    sample: str
    group: GroupFacts
    attempt: int
    prompt_length: int
    min_version: int
    rollout: str = ""
    max_version: int | None = None
    fate: Fate = Fate.WAITING
    ended: int = 0
    length: int = 0
    oldest: int | None = None
    newest: int | None = None
    digest: str = ""
    reward: float | None = None
    graded: int = 0

    def saw(self, spans: tuple[WeightSpan, ...]) -> None:
        """Widen the range of weight versions over its tokens."""
        for span in spans:
            version = span.version
            self.oldest = version if self.oldest is None else min(self.oldest, version)
            self.newest = version if self.newest is None else max(self.newest, version)


@dataclass(slots=True)
class GroupFacts:
    """One group. version: of the weights when it was first asked for (an evaluation's: that it is of). order: the
    how-manieth training group asked for. decided: position of its verdict. step: whose batch has it. recalled: of one
    whose rollouts are those of a recorded group, named by source and key.
    """

    group: str
    position: int
    purpose: Purpose
    dataset: str
    version: int
    samples: dict[str, SampleFacts] = field(default_factory=dict)
    order: int = -1
    decided: int = 0
    accepted: bool = False
    step: int | None = None
    recalled: Recalled | None = None
    recorded: tuple[str, str] = ("", "")

    @property
    def oldest(self) -> int:
        """The oldest weight version in it; a sample without tokens counts as the version it was asked for with."""
        versions = (s.min_version if s.oldest is None else s.oldest for s in self.samples.values())
        return min(versions, default=self.version)
