"""Batches: made of accepted groups, or of rollouts of the run that a learner follows, each once."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from schemas.batches import BatchSealed
from schemas.errors import DataError
from schemas.ids import group_of
from schemas.steps import StepCommitted
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import GroupFacts, Ledger, SampleFacts
from slime_events.loop.conductor.seal import batch_digest
from storage.log import Recorded


class Batches(Check):
    """One batch per step, in order; all that it names is recomputed from what was said before."""

    name = "batches"
    promise = "accepted groups once each, samples, rewards and digest recomputed"
    hears = (BatchSealed,)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._samples = self._normalised = 0

    @property
    def applies(self) -> bool:
        return not self.ledger.follows  # `Followed` is for those whose rollouts are another run's

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        assert isinstance(event, BatchSealed)
        self._samples += len(event.samples)
        if event.step != self.ledger.steps_sealed:
            wrong = f"it is step {event.step}, and the batch of step {self.ledger.steps_sealed} is next"
            self.find(recorded, wrong, "a batch is missing or repeated")
        groups = self._groups(recorded, event)
        samples = [sample for group in groups for sample in group.samples.values()]
        if tuple(s.sample for s in samples) != event.samples:
            wrong = "its samples are not those of its groups in order"
            self.find(recorded, wrong, "samples were left out or added")
            return
        self._rewards(recorded, event, samples, [len(group.samples) for group in groups])
        lines = [(s.sample, s.digest, r) for s, r in zip(samples, event.rewards, strict=False)]
        if batch_digest(event.step, lines) != event.digest:
            wrong = "its digest is not that of its samples' contents and rewards"
            self.find(recorded, wrong, "what was sealed is not what the log holds")
        oldest = min((group.oldest for group in groups), default=0)
        if event.oldest_version != oldest:
            wrong = f"it says its oldest weights are v{event.oldest_version}, and they are v{oldest}"
            self.find(recorded, wrong, "its staleness is wrong")

    def _groups(self, recorded: Recorded, event: BatchSealed) -> list[GroupFacts]:
        found = []
        for name in event.groups:
            group = self.ledger.groups.get(name)
            if group is None or not group.accepted:
                self.find(recorded, f"group {name} was not accepted before it", "it trains on what was not decided")
            elif group.step is not None:
                self.find(recorded, f"group {name} is in the batch of step {group.step}", "its samples train twice")
            if group is not None:
                found.append(group)
        return found

    def _rewards(self, recorded: Recorded, event: BatchSealed, samples: list[SampleFacts], sizes: list[int]) -> None:
        if [s.reward for s in samples] != list(event.raw_rewards):
            wrong = "its raw rewards are not those assigned"
            self.find(recorded, wrong, "it trains on rewards that nobody gave")
            return
        algorithm = self.ledger.rules.algorithm
        if algorithm is None:
            return
        try:
            normalised = normalize_rewards(event.raw_rewards, sizes, algorithm)
        except DataError as error:
            self.find(recorded, str(error), "its advantages are not numbers")
            return
        self._normalised += len(normalised)
        if len(normalised) != len(event.rewards) or not all(map(_close, normalised, event.rewards)):
            wrong = "its rewards are not its raw rewards normalised over their groups"
            self.find(recorded, wrong, "it trains on other advantages than the log gives")

    def counts(self) -> Counts:
        return {
            "batches": len(self.ledger.batches),
            "samples": self._samples,
            "rewards not renormalised": self._samples - self._normalised,
        }


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


class Followed(Check):
    """In the place of the checks on batches and their samples, which look for rollouts in the run's own log.

    parent: what the log of the run that it follows holds. Without it the learner's own log is looked at alone, and the
    samples are counted.
    """

    name = "followed"
    promise = "each sample of the parent once, normalised over what is left of its group"
    hears = (BatchSealed, StepCommitted)

    def __init__(self, ledger: Ledger, parent: Ledger | None) -> None:
        super().__init__(ledger)
        self._parent = parent
        self._step_of: dict[str, int] = {}
        self._looked_up = self._otherwise = self._left_out = self._empty = 0

    @property
    def applies(self) -> bool:
        return self.ledger.follows

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if isinstance(event, BatchSealed):
            self._sealed(recorded, event)
        elif isinstance(event, StepCommitted):
            self._committed(recorded, event)

    def _sealed(self, recorded: Recorded, batch: BatchSealed) -> None:
        if batch.step != self.ledger.steps_sealed:
            wrong = f"it is step {batch.step}, and the batch of step {self.ledger.steps_sealed} is next"
            self.find(recorded, wrong, "a batch is missing or repeated")
        self._empty += not batch.samples
        if tuple(dict.fromkeys(map(group_of, batch.samples))) != batch.groups:
            self.find(recorded, "its samples are not of its groups in order", "samples were left out or added")
        for sample in batch.samples:
            if (step := self._step_of.setdefault(sample, batch.step)) != batch.step:
                self.find(recorded, f"sample {sample} is in the batch of step {step}", "it trains twice")
        self._rewards(recorded, batch)
        if self._parent is not None:
            self._contents(recorded, batch, self._parent)

    def _rewards(self, recorded: Recorded, batch: BatchSealed) -> None:
        algorithm = self.ledger.rules.algorithm
        if algorithm is None:
            return
        members = [group_of(sample) for sample in batch.samples]
        try:
            normalised = normalize_rewards(batch.raw_rewards, [members.count(one) for one in batch.groups], algorithm)
        except DataError as error:
            self.find(recorded, str(error), "its advantages are not numbers")
            return
        if tuple(normalised) != batch.rewards:
            wrong = "its rewards are not its raw rewards normalised over what is left of their groups"
            self.find(recorded, wrong, "it trains on other advantages than the log gives")

    def _contents(self, recorded: Recorded, batch: BatchSealed, parent: Ledger) -> None:
        facts = self._found(recorded, batch, parent)
        if len(facts) < len(batch.samples):
            return
        self._looked_up += len(facts)
        self._otherwise += sum(fact.reward != raw for fact, raw in zip(facts, batch.raw_rewards, strict=True))
        self._left_out += sum(len(parent.groups[group].samples) for group in batch.groups) - len(facts)
        lines = [(fact.sample, fact.digest, reward) for fact, reward in zip(facts, batch.rewards, strict=True)]
        if batch_digest(batch.step, lines) != batch.digest:
            wrong = f"its digest is not that of its samples' contents in the log of {parent.run} and its rewards"
            self.find(recorded, wrong, "what was sealed is not what that log holds")

    def _found(self, recorded: Recorded, batch: BatchSealed, parent: Ledger) -> list[SampleFacts]:
        facts = [parent.samples.get(sample) for sample in batch.samples]
        for sample, fact in zip(batch.samples, facts, strict=True):
            if fact is None or not fact.ended:
                wrong = f"the log of {parent.run} holds no completed rollout of sample {sample}"
                self.find(recorded, wrong, "nobody knows what it trained on")
        return [fact for fact in facts if fact is not None and fact.ended]

    def _committed(self, recorded: Recorded, event: StepCommitted) -> None:
        batch = self.ledger.batches.get(event.step)
        if self._parent is None or batch is None:
            return
        facts = [self._parent.samples[name] for name in batch.samples if name in self._parent.samples]
        tokens = sum(fact.prompt_length + fact.length for fact in facts)
        if event.tokens != tokens:
            wrong = f"it counts {event.tokens} tokens, and its batch has {tokens}"
            self.find(recorded, wrong, "it trained on something else")

    def counts(self) -> Counts:
        return {
            "batches": len(self.ledger.batches),
            "empty": self._empty,
            "samples": len(self._step_of),
            "of them not looked up": len(self._step_of) - self._looked_up,
            "left out of their groups": self._left_out,
            "graded otherwise": self._otherwise,
        }


async def facts_of(run: str, records: AsyncIterator[Recorded]) -> Ledger:
    """What the log of a run holds, for the audit of those that follow it."""
    ledger = Ledger(run)
    async for recorded in records:
        ledger.apply(recorded)
    return ledger
