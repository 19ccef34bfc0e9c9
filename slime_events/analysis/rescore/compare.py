"""`Comparison`: recorded groups and batches beside what they would have been. A fold of both."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.rewards import RewardFailureKind
from slime_events.algorithms.reward_norm import normalize_rewards
from slime_events.analysis.rescore.advantages import (
    Floats,
    Mask,
    advantage_weights,
    effective_sample_size,
    sample_advantages,
)
from slime_events.analysis.rescore.bulk_grading import Given, Missing
from slime_events.analysis.rescore.change import Change
from slime_events.analysis.rescore.changes import ChangesFile, GroupChange, SampleChange
from slime_events.analysis.rescore.collect import Group
from slime_events.analysis.rescore.partial_events import CompletedFields
from slime_events.analysis.rescore.report import (
    Distribution,
    Evaluation,
    Groups,
    Regraded,
    Samples,
    Step,
    Turned,
    distributions,
)
from slime_events.analysis.rescore.verdict import BEYOND, Verdict, recorded_verdict, verdict_on
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.trajectory import Fetch
from slime_events.loop.conductor.accept import GroupFilter


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A group that was accepted, until its batch comes. rewards: as they would be; None where it would be rejected."""

    rewards: tuple[float, ...] | None
    masks: tuple[Mask, ...]


@dataclass(slots=True)
class Comparison:
    """Take everything in the log's order. judge: the filter as asked for, None where every group is kept. most: of
    each kind of example. waiting: accepted groups that no batch has yet.
    """

    change: Change
    judge: GroupFilter | None
    fetch: Fetch
    changes: ChangesFile
    most: int = 5
    waiting: dict[str, _Waiting] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    unlike: int = 0
    _before: array[float] = field(default_factory=lambda: array("d"))
    _after: array[float] = field(default_factory=lambda: array("d"))
    _counts: Counter[str] = field(default_factory=Counter)
    _failed: Counter[str] = field(default_factory=Counter)
    _examples: list[Regraded] = field(default_factory=list)
    _turned: dict[bool, list[Turned]] = field(default_factory=lambda: {True: [], False: []})
    _eval_sums: Counter[tuple[str, int]] = field(default_factory=Counter)
    _offered: int = 0

    def group(self, group: Group, given: Sequence[Given] | None) -> None:
        """A group that was decided, or an evaluation's. given: an outcome per rollout; None: as they were."""
        if given is None:
            given = [_as_it_was(rollout.reward, rollout.failure) for rollout in group.rollouts.values()]
        if group.is_evaluation:
            key = group.prompt.dataset, group.prompt.version or 0
            self._eval_sums[key] += sum(one for one in given if not isinstance(one, Missing))  # type: ignore[assignment]
            return
        self._samples(group, given)
        before, after = recorded_verdict(group), verdict_on(group, given, self.judge)
        self._verdicts(group, given, before, after)
        if before.accepted:
            rewards = tuple(one for one in given if not isinstance(one, Missing)) if after.accepted else None
            masks = tuple(self._mask(rollout.completed) for rollout in group.rollouts.values())
            self.waiting[group.prompt.group] = _Waiting(rewards, masks)

    def _samples(self, group: Group, given: Sequence[Given]) -> None:
        for (sample, rollout), one in zip(group.rollouts.items(), given, strict=True):
            if rollout.reward is None and not rollout.failure:
                continue  # another of its group failed before it was graded
            before = rollout.reward
            after, failure = (None, one.message) if isinstance(one, Missing) else (one, "")
            self._counts["samples"] += 1
            if before is None:
                self._counts["failed before"] += 1
            else:
                self._before.append(before)
            if isinstance(one, Missing):
                self._failed[one.kind.value] += 1
            else:
                self._after.append(one)
            if after == before:
                continue
            self._counts["otherwise"] += 1
            if after is not None:
                self.changes.write(SampleChange(sample, after))
            if len(self._examples) < self.most:
                self._examples.append(Regraded(sample=sample, before=before, after=after, failure=failure))

    def _verdicts(self, group: Group, given: Sequence[Given], before: Verdict, after: Verdict) -> None:
        self._counts["decided"] += 1
        self._counts["accepted before"] += before.accepted
        self._counts["accepted after"] += after.accepted
        self._counts["beyond"] += before.cause in BEYOND
        self._counts["by fallback"] += after.fallback
        if before.accepted == after.accepted:
            return
        name = group.prompt.group
        self._offered += after.accepted
        self._counts["accepted now" if after.accepted else "rejected now"] += 1
        self.changes.write(GroupChange(name, after.accepted, after.reason))
        shown = self._turned[after.accepted]
        if len(shown) < self.most:
            was = [rollout.reward for rollout in group.rollouts.values()]
            now = [None if isinstance(one, Missing) else one for one in given]
            step = len(self.steps)
            shown.append(Turned(group=name, before=was, after=now, reason=after.reason, step=step))

    def _mask(self, completed: CompletedFields) -> Mask:
        mask = completed.loss_mask
        return completed.length if mask is None else np.asarray(self.fetch(mask), dtype=np.int8)

    def batch(self, sealed: BatchSealed) -> None:
        """A batch, after its groups."""
        groups = [self.waiting.pop(group, _Waiting(None, ())) for group in sealed.groups]
        sizes = [len(group.masks) for group in groups]
        masks = [mask for group in groups for mask in group.masks]
        if sum(sizes) != len(sealed.raw_rewards):
            self.unlike += 1  # not the groups that were decided
            return
        algorithm = self.change.before.algorithm
        normalised = normalize_rewards(sealed.raw_rewards, sizes, algorithm)
        self.unlike += not all(map(_close, normalised, sealed.rewards))
        before = sample_advantages(normalised, masks, algorithm)
        stays = np.repeat([group.rewards is not None for group in groups], sizes)
        after, left = self._after_change(groups)
        differ = ~np.isclose(before[stays], after, rtol=1e-9, atol=1e-12)
        self.steps.append(
            Step(
                step=sealed.step,
                samples=len(masks),
                samples_after=len(left),
                lost=sum(1 for group in groups if group.rewards is None),
                offered=self._offered,
                advantages=int(differ.sum()),
                ess_before=_ess(before, masks, algorithm),
                ess_after=_ess(after, left, self.change.after.algorithm),
            )
        )
        self._offered = 0

    def _after_change(self, groups: Sequence[_Waiting]) -> tuple[Floats, list[Mask]]:
        """Advantages and masks of what stays of a batch."""
        left = [group for group in groups if group.rewards is not None]
        raw = [reward for group in left for reward in group.rewards or ()]
        masks = [mask for group in left for mask in group.masks]
        algorithm = self.change.after.algorithm
        normalised = normalize_rewards(raw, [len(group.masks) for group in left], algorithm)
        return sample_advantages(normalised, masks, algorithm), masks

    def evaluation(self, said: EvalCompleted) -> None:
        """An evaluation, after its groups. Samples without a reward count as 0, as in the run."""
        total = float(self._eval_sums.pop((said.dataset, said.version), 0))
        after = total / said.samples if said.samples else 0.0
        self.evaluations.append(Evaluation(dataset=said.dataset, version=said.version, before=said.mean, after=after))

    def samples(self) -> Samples:
        """What became of the samples."""
        return Samples(
            graded=self._counts["samples"],
            otherwise=self._counts["otherwise"],
            failed_before=self._counts["failed before"],
            failed=dict(self._failed),
            examples=self._examples,
        )

    def groups(self, undecided: int) -> Groups:
        """What became of the groups."""
        return Groups(
            decided=self._counts["decided"],
            accepted_before=self._counts["accepted before"],
            accepted_after=self._counts["accepted after"],
            beyond=self._counts["beyond"],
            by_fallback=self._counts["by fallback"],
            undecided=undecided,
            rejected_now=self._counts["rejected now"],
            accepted_now=self._counts["accepted now"],
            rejected_examples=self._turned[False],
            accepted_examples=self._turned[True],
        )

    def rewards(self) -> tuple[Distribution, Distribution]:
        """Before and after."""
        return distributions(self._before, self._after)


def _as_it_was(reward: float | None, failure: str) -> Given:
    if reward is not None:
        return reward
    kind, _, message = failure.partition(": ")
    return Missing(RewardFailureKind(kind), message) if failure else Missing(RewardFailureKind.NONE, "")


def _ess(advantages: Floats, masks: Sequence[Mask], algorithm: AlgorithmSettings) -> float:
    return effective_sample_size(advantage_weights(advantages, masks, algorithm))


def _close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
