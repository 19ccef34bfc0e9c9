"""Staleness: was every sample trained within the bound?"""

from __future__ import annotations

from collections import Counter

from schemas.steps import StepCommitted
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded


class Staleness(Check):
    """Versions that a sample's oldest token was behind the weights that it trained."""

    name = "staleness"
    promise = "every sample within the bound of the run's settings"
    hears = (StepCommitted,)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._samples: Counter[int] = Counter()

    @property
    def applies(self) -> bool:
        return not self.ledger.follows  # `Followed` is for those whose rollouts are another run's

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        assert isinstance(event, StepCommitted)
        plan = self.ledger.rules.plan
        batch = self.ledger.batches.get(event.step)
        for name in batch.samples if batch else ():
            sample = self.ledger.samples.get(name)
            if sample is None or sample.oldest is None:
                continue
            behind = event.parent_version - sample.oldest
            self._samples[behind] += 1
            recalled = sample.group.recalled
            most = recalled.bound if recalled is not None else None if plan is None else plan.staleness_bound
            if most is not None and not 0 <= behind <= most:
                wrong = f"sample {name} begins with v{sample.oldest} and trained v{event.parent_version}, {behind} "
                wrong += f"behind where {most} is the most"
                self.find(recorded, wrong, "it is further off policy than was asked for")

    def counts(self) -> Counts:
        plan = self.ledger.rules.plan
        return {
            "at worst": max(self._samples, default=0),
            "allowed": None if plan is None else plan.staleness_bound,
            "samples by versions behind": {str(behind): n for behind, n in sorted(self._samples.items())},
        }
