"""Batches: is each made of accepted groups, once, with the digest that its samples and rewards give?"""

from __future__ import annotations

import math

from schemas.batches import BatchSealed
from schemas.errors import DataError
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.facts import GroupFacts, SampleFacts
from slime_events.analysis.audit.ledger import Ledger
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
