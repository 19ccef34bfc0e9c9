"""Batches: made of accepted groups, or of rollouts of the run that a learner follows, each once."""

import functools
import math

from schemas.batches import BatchSealed
from schemas.errors import DataError
from schemas.ids import group_of
from schemas.steps import StepCommitted
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger, SampleEntry
from slime_events.loop.conductor.seal import batch_digest


class _BatchCheck(Check):
    def _check_step(self, batch: BatchSealed) -> None:
        self.seen["batches"] += batch.step not in self.ledger.batches
        if batch.step != self.ledger.steps_sealed:
            wrong = f"its step is {batch.step}, and the next one is {self.ledger.steps_sealed}"
            self.find(wrong, "a batch is missing or repeated")

    def _normalised(self, batch: BatchSealed, sizes: list[int]) -> list[float] | None:
        """Return the raw rewards normalised over groups of these sizes; None if that is impossible."""
        algorithm = self.ledger.rules.algorithm
        try:
            return None if algorithm is None else normalize_rewards(batch.raw_rewards, sizes, algorithm)
        except DataError as error:
            self.find(str(error), "its advantages are not numbers")
            return None


class Batches(_BatchCheck):
    """One batch per step, in order. All that it names is recomputed from the events before it."""

    name = "batches"
    promise = "accepted groups once each, samples, rewards and digest recomputed"
    counted = ("batches", "samples", "rewards not renormalised")
    of_own_rollouts = True

    def _on_batch_sealed(self, event: BatchSealed) -> None:
        self.seen["samples"] += len(event.samples)
        self.seen["rewards not renormalised"] += len(event.samples)
        self._check_step(event)
        if event.commands:
            return  # `Commands` recomputes it
        groups = [self.ledger.groups[name] for name in event.groups if self._is_known(name)]
        samples = [sample for group in groups for sample in group.samples.values()]
        if tuple(s.sample for s in samples) != event.samples:
            self.find("its samples are not those of its groups in order", "samples were removed or added")
            return
        self._rewards(event, samples, [len(group.samples) for group in groups])
        if not set(event.removed) <= set(event.samples):
            self.find("it removes samples that it does not have", "the step leaves out something else")
        lines = [(s.sample, s.digest, r) for s, r in zip(samples, event.rewards, strict=False)]
        if batch_digest(event.step, lines) != event.digest:
            wrong = "its digest is not that of its samples' contents and rewards"
            self.find(wrong, "the sealed contents are not those in the log")
        oldest = min((group.oldest for group in groups), default=0)
        if event.oldest_version != oldest:
            wrong = f"it gives v{event.oldest_version} as its oldest weights, and they are v{oldest}"
            self.find(wrong, "its staleness is wrong")

    def _is_known(self, name: str) -> bool:
        group = self.ledger.groups.get(name)
        if group is None or not group.accepted:
            self.find(f"group {name} was not accepted before it", "the step trains on an undecided group")
        elif group.step is not None:
            self.find(f"group {name} is already in the batch of step {group.step}", "its samples train twice")
        return group is not None

    def _rewards(self, event: BatchSealed, samples: list[SampleEntry], sizes: list[int]) -> None:
        if event.post_process or event.converted_by:
            return  # the results of the user's function are in this event alone
        if [s.reward for s in samples] != list(event.raw_rewards):
            self.find("its raw rewards are not those assigned", "the step trains on rewards that no grader gave")
            return
        normalised = self._normalised(event, sizes)
        self.seen["rewards not renormalised"] -= len(normalised or ())
        if normalised is not None and not (
            len(normalised) == len(event.rewards) and all(map(_close, normalised, event.rewards))
        ):
            wrong = "its rewards are not its raw rewards normalised over their groups"
            self.find(wrong, "the step trains on advantages that do not follow from the log")


_close = functools.partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)


class Followed(_BatchCheck):
    """A learner's batches. Replaces the checks that look for rollouts in the run's own log.

    parent: ledger of the run that it follows. Without it only the learner's own log is checked, and the samples are
    counted.
    """

    name = "followed"
    promise = "each sample of the parent once, normalised over the rest of its group"
    of_own_rollouts = False
    counted = (
        "batches", "empty", "samples", "of them not looked up", "left out of their groups", "graded differently",
    )  # fmt: skip

    def __init__(self, ledger: Ledger, parent: Ledger | None) -> None:
        super().__init__(ledger)
        self._parent = parent
        self._step_of: dict[str, int] = {}

    def _on_batch_sealed(self, batch: BatchSealed) -> None:
        self._check_step(batch)
        self.seen["empty"] += not batch.samples
        members = [group_of(sample) for sample in batch.samples]
        if tuple(dict.fromkeys(members)) != batch.groups:
            self.find("its samples are not of its groups in order", "samples were removed or added")
        for sample in batch.samples:
            self.seen["samples"] += sample not in self._step_of
            self.seen["of them not looked up"] += sample not in self._step_of
            if (step := self._step_of.setdefault(sample, batch.step)) != batch.step:
                self.find(f"sample {sample} is already in the batch of step {step}", "it trains twice")
        normalised = self._normalised(batch, [members.count(group) for group in batch.groups])
        if normalised is not None and tuple(normalised) != batch.rewards:
            wrong = "its rewards are not its raw rewards normalised over the rest of their groups"
            self.find(wrong, "the step trains on advantages that do not follow from the log")
        if self._parent is not None:
            self._contents(batch, self._parent)

    def _contents(self, batch: BatchSealed, parent: Ledger) -> None:
        lost = [name for name in batch.samples if name not in parent.samples or not parent.samples[name].ended]
        for name in lost:
            wrong = f"the log of {parent.run} holds no completed rollout of sample {name}"
            self.find(wrong, "its training data is unknown")
        if lost:
            return
        samples = [parent.samples[name] for name in batch.samples]
        self.seen["of them not looked up"] -= len(samples)
        raw = zip(samples, batch.raw_rewards, strict=True)
        self.seen["graded differently"] += sum(sample.reward != reward for sample, reward in raw)
        groups = [parent.groups[group] for group in batch.groups]
        self.seen["left out of their groups"] += sum(len(group.samples) for group in groups) - len(samples)
        lines = [(s.sample, s.digest, reward) for s, reward in zip(samples, batch.rewards, strict=True)]
        if batch_digest(batch.step, lines) != batch.digest:
            wrong = f"its digest is not that of its rewards and its samples' contents in the log of {parent.run}"
            self.find(wrong, "the sealed contents are not those in that log")

    def _on_step_committed(self, event: StepCommitted) -> None:
        batch = self.ledger.batches.get(event.step)
        if self._parent is not None and batch is not None and event.tokens != (tokens := self._parent.tokens_of(batch)):
            self.find(f"it has {event.tokens} tokens, and its batch {tokens}", "the step trained on something else")
