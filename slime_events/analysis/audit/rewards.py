"""Rewards: one outcome for each completed sample, after it was completed."""

from __future__ import annotations

import math

from schemas.rewards import RewardAssigned, RewardFailed
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.facts import Fate
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded


class Rewards(Check):
    """A sample has a reward or a reason why it has none, never both."""

    name = "rewards"
    promise = "one outcome per completed sample, after its completion"
    hears = (RewardAssigned, RewardFailed)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._assigned = self._failed = 0

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        assert isinstance(event, RewardAssigned | RewardFailed)
        if isinstance(event, RewardAssigned):
            self._assigned += 1
            if not math.isfinite(event.value):
                self.find(recorded, f"its value is {event.value}", "the group's advantages are not numbers")
        else:
            self._failed += 1
        sample = self.ledger.samples.get(event.sample)
        if sample is None or sample.fate is not Fate.COMPLETED:
            self.find(recorded, "no completed rollout of the sample comes before it", "a reward was given for nothing")
            return
        if sample.graded:
            wrong = f"the sample had its outcome at position {sample.graded}"
            self.find(recorded, wrong, "two graders disagree about it")
        if event.group != sample.group.group:
            wrong = f"it names group {event.group}, and the sample is of {sample.group.group}"
            self.find(recorded, wrong, "the reward counts for another group")

    def counts(self) -> Counts:
        samples = self.ledger.samples.values()
        waiting = sum(1 for s in samples if s.fate is Fate.COMPLETED and not s.graded and not s.group.decided)
        return {"assigned": self._assigned, "failed": self._failed, "waiting for a grader": waiting}
