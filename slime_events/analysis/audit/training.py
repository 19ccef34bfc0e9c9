"""Training: is every accepted sample trained once, or still waiting for something that can be named?"""

from __future__ import annotations

from schemas.event import Purpose
from schemas.steps import StepCommitted
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded


class Training(Check):
    """Counted by sample over the committed steps, apart from how batches were put together."""

    name = "training"
    promise = "every accepted sample trained once, or waiting"
    hears = (StepCommitted,)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._trained: dict[str, int] = {}

    @property
    def applies(self) -> bool:
        return not self.ledger.follows  # `Followed` is for those whose rollouts are another run's

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        assert isinstance(event, StepCommitted)
        batch = self.ledger.batches.get(event.step)
        for name in batch.samples if batch else ():
            first = self._trained.setdefault(name, recorded.position)
            if first != recorded.position:
                self.find(recorded, f"sample {name} was trained at position {first}", "it counts twice in the weights")
            sample = self.ledger.samples.get(name)
            if sample is None or not sample.group.accepted:
                self.find(recorded, f"sample {name} was never accepted", "it counts in the weights and should not")

    def counts(self) -> Counts:
        found: Counts = {"trained": len(self._trained)}
        for group in self.ledger.groups.values():
            if group.purpose is Purpose.TRAIN and group.accepted:
                waiting = sum(1 for sample in group.samples if sample not in self._trained)
                if waiting:
                    reason = self._waits_for(group.step)
                    found[reason] = found.get(reason, 0) + waiting
        return found

    def _waits_for(self, step: int | None) -> str:
        if step is not None:
            return f"waiting for step {step} to be committed"
        if self.ledger.has_all_steps:
            return "left over after the last step"
        return f"waiting for the batch of step {self.ledger.steps_sealed}"
