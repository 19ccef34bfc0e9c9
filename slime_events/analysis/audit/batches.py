"""Batches: made of accepted groups, or of rollouts of the run that a learner follows, each once."""

import math

from schemas.batches import BatchSealed
from schemas.errors import DataError
from schemas.ids import group_of
from schemas.steps import StepCommitted
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import GroupEntry, Ledger, SampleEntry
from slime_events.loop.conductor.seal import batch_digest
from storage.log import Recorded


class _BatchCheck(Check):
    def _check_step(self, recorded: Recorded, batch: BatchSealed) -> None:
        if batch.step != self.ledger.steps_sealed:
            wrong = f"it is step {batch.step}, and the batch of step {self.ledger.steps_sealed} is next"
            self.find(recorded, wrong, "a batch is missing or repeated")

    def _normalised(self, recorded: Recorded, batch: BatchSealed, sizes: list[int]) -> list[float] | None:
        """The raw rewards normalised over groups of these sizes; None where that cannot be done."""
        algorithm = self.ledger.rules.algorithm
        try:
            return None if algorithm is None else list(normalize_rewards(batch.raw_rewards, sizes, algorithm))
        except DataError as error:
            self.find(recorded, str(error), "its advantages are not numbers")
            return None


class Batches(_BatchCheck):
    """One batch per step, in order; all that it names is recomputed from the events before it."""

    name = "batches"
    promise = "accepted groups once each, samples, rewards and digest recomputed"
    of_own_rollouts = True

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, {BatchSealed: self._sealed})
        self._samples = self._renormalised = 0

    def _sealed(self, recorded: Recorded, event: BatchSealed) -> None:
        self._samples += len(event.samples)
        self._check_step(recorded, event)
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
            wrong = f"its oldest weights are given as v{event.oldest_version}, and they are v{oldest}"
            self.find(recorded, wrong, "its staleness is wrong")

    def _groups(self, recorded: Recorded, event: BatchSealed) -> list[GroupEntry]:
        groups = []
        for name in event.groups:
            group = self.ledger.groups.get(name)
            if group is None or not group.accepted:
                self.find(recorded, f"group {name} was not accepted before it", "it trains on what was not decided")
            elif group.step is not None:
                self.find(recorded, f"group {name} is in the batch of step {group.step}", "its samples train twice")
            if group is not None:
                groups.append(group)
        return groups

    def _rewards(self, recorded: Recorded, event: BatchSealed, samples: list[SampleEntry], sizes: list[int]) -> None:
        if [s.reward for s in samples] != list(event.raw_rewards):
            wrong = "its raw rewards are not those assigned"
            self.find(recorded, wrong, "it trains on rewards that nobody gave")
            return
        normalised = self._normalised(recorded, event, sizes)
        if normalised is None:
            return
        self._renormalised += len(normalised)
        if len(normalised) != len(event.rewards) or not all(map(_close, normalised, event.rewards)):
            wrong = "its rewards are not its raw rewards normalised over their groups"
            self.find(recorded, wrong, "it trains on other advantages than the log gives")

    def counts(self) -> Counts:
        return {
            "batches": len(self.ledger.batches),
            "samples": self._samples,
            "rewards not renormalised": self._samples - self._renormalised,
        }


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)


class Followed(_BatchCheck):
    """A learner's batches, in the place of the checks that look for rollouts in the run's own log.

    parent: the ledger of the run that it follows. Without it only the learner's own log is checked, and the samples are
    counted.
    """

    name = "followed"
    promise = "each sample of the parent once, normalised over what is left of its group"

    def __init__(self, ledger: Ledger, parent: Ledger | None) -> None:
        super().__init__(ledger, {BatchSealed: self._sealed, StepCommitted: self._committed})
        self._parent = parent
        self._step_of: dict[str, int] = {}
        self._looked_up = self._regraded = self._left_out = self._empty = 0

    @property
    def applies(self) -> bool:
        return self.ledger.follows

    def _sealed(self, recorded: Recorded, batch: BatchSealed) -> None:
        self._check_step(recorded, batch)
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
        members = [group_of(sample) for sample in batch.samples]
        normalised = self._normalised(recorded, batch, [members.count(one) for one in batch.groups])
        if normalised is not None and tuple(normalised) != batch.rewards:
            wrong = "its rewards are not its raw rewards normalised over what is left of their groups"
            self.find(recorded, wrong, "it trains on other advantages than the log gives")

    def _contents(self, recorded: Recorded, batch: BatchSealed, parent: Ledger) -> None:
        samples = self._looked_up_in(recorded, batch, parent)
        if len(samples) < len(batch.samples):
            return
        self._looked_up += len(samples)
        self._regraded += sum(s.reward != raw for s, raw in zip(samples, batch.raw_rewards, strict=True))
        self._left_out += sum(len(parent.groups[group].samples) for group in batch.groups) - len(samples)
        lines = [(s.sample, s.digest, reward) for s, reward in zip(samples, batch.rewards, strict=True)]
        if batch_digest(batch.step, lines) != batch.digest:
            wrong = f"its digest is not that of its samples' contents in the log of {parent.run} and its rewards"
            self.find(recorded, wrong, "what was sealed is not what that log holds")

    def _looked_up_in(self, recorded: Recorded, batch: BatchSealed, parent: Ledger) -> list[SampleEntry]:
        samples = []
        for name in batch.samples:
            sample = parent.samples.get(name)
            if sample is not None and sample.ended:
                samples.append(sample)
            else:
                wrong = f"the log of {parent.run} holds no completed rollout of sample {name}"
                self.find(recorded, wrong, "nobody knows what it trained on")
        return samples

    def _committed(self, recorded: Recorded, event: StepCommitted) -> None:
        batch = self.ledger.batches.get(event.step)
        if self._parent is None or batch is None:
            return
        samples = [self._parent.samples[name] for name in batch.samples if name in self._parent.samples]
        tokens = sum(sample.prompt_length + sample.length for sample in samples)
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
            "graded differently": self._regraded,
        }
