"""Steps: is each sealed batch committed once, on the version before it?"""

from __future__ import annotations

from schemas.batches import BatchSealed
from schemas.steps import StepClaimed, StepCommitted
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Ledger
from storage.log import Recorded


class Steps(Check):
    """Step s makes version s + 1 from version s, on the batch that was sealed for it."""

    name = "steps"
    promise = "each batch committed once, in order, with its digest and counts"
    hears = (StepClaimed, StepCommitted)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._tokens = 0
        self._claims: list[StepClaimed] = []

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if isinstance(event, StepClaimed):
            self._claims.append(event)
        elif isinstance(event, StepCommitted):
            self._committed(recorded, event)

    def _committed(self, recorded: Recorded, event: StepCommitted) -> None:
        ledger, claim = self.ledger, self._claims[-1] if self._claims else None
        if claim is not None and claim.trainer != recorded.envelope.producer:
            wrong = f"{recorded.envelope.producer} said it after {claim.trainer} had claimed step {claim.step}"
            self.find(recorded, wrong, "a trainer that was replaced still commits")
        if event.step in ledger.steps:
            self.find(recorded, f"step {event.step} was committed before", "its samples trained twice")
        elif event.step != ledger.steps_committed:
            wrong = f"step {event.step} comes after {ledger.steps_committed} steps"
            self.find(recorded, wrong, "a step is missing")
        if (event.parent_version, event.version) != (event.step, event.step + 1):
            wrong = f"it makes v{event.version} from v{event.parent_version}, not v{event.step + 1} from v{event.step}"
            self.find(recorded, wrong, "the chain of weight versions is broken")
        batch = ledger.batches.get(event.step)
        if batch is None:
            self.find(recorded, "no batch was sealed for it", "nobody knows what it trained on")
            return
        if batch.digest != event.batch_digest:
            wrong = "its batch digest is not that of the sealed batch"
            self.find(recorded, wrong, "it trained on something else")
        self._sums(recorded, event, batch)

    def _sums(self, recorded: Recorded, event: StepCommitted, batch: BatchSealed) -> None:
        self._tokens += event.tokens
        facts = [self.ledger.samples[name] for name in batch.samples if name in self.ledger.samples]
        tokens = sum(sample.prompt_length + sample.length for sample in facts)
        if self.ledger.follows:
            tokens = event.tokens  # `Followed` counts them: the rollouts are in another log
        if (event.samples, event.tokens) != (len(batch.samples), tokens):
            wrong = f"it counts {event.samples} samples of {event.tokens} tokens, and its batch has "
            wrong += f"{len(batch.samples)} of {tokens}"
            self.find(recorded, wrong, "it trained on something else")

    def counts(self) -> Counts:
        waiting = len(self.ledger.batches.keys() - self.ledger.steps.keys())
        return {
            "steps": len(self.ledger.steps),
            "tokens": self._tokens,
            "trainers": len(self._claims),
            "batches waiting for the trainer": waiting,
        }
