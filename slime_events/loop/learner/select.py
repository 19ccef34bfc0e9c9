"""What of a decided group a learner trains on: which samples, with which rewards. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from slime_events.core.state.group import GroupState, SampleState
from slime_events.loop.conductor.accept import Judge, Verdict
from slime_events.loop.learner.overrides import Changes

LEAST = 2
"""Samples that a group must have left once it has lost some: one alone has nothing to be compared with."""


@dataclass(frozen=True, slots=True)
class Choice:
    """samples: of the group, in its order, with the rewards that are trained on."""

    group: GroupState
    samples: tuple[SampleState, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Before normalisation."""
        return tuple(float(sample.reward) for sample in self.samples if sample.reward is not None)

    @property
    def oldest(self) -> int:
        """The oldest weight version in it, of the run that made it."""
        return min(s.min_version if s.oldest is None else s.oldest for s in self.samples)


def choose(group: GroupState, verdict: Verdict, changes: Changes, judge: Judge | None) -> Choice | None:
    """What is trained on, None where it is nothing. group: as its run had it when it said `verdict`.

    judge: the learner's own filter, None where it has its parent's: verdicts are then taken again only where they are
    changed by name. Raises PlugPointError where the filter is broken.
    """
    if group.group in changes.dropped_groups:
        return None
    left = _left(group, changes)
    if not left.samples or (len(left.samples) < LEAST and len(left.samples) < len(group.samples)):
        return None
    return left if _is_accepted(left, verdict, changes, judge) else None


def _left(group: GroupState, changes: Changes) -> Choice:
    samples = []
    for sample in group.samples.values():
        reward = changes.rewards.get(sample.sample, sample.reward)
        if sample.stop is not None and reward is not None and sample.sample not in changes.dropped:
            samples.append(msgspec.structs.replace(sample, reward=reward))
    return Choice(group, tuple(samples))


def _is_accepted(left: Choice, verdict: Verdict, changes: Changes, judge: Judge | None) -> bool:
    told = changes.verdicts.get(left.group.group)
    if told is not None:
        return told
    judged = isinstance(verdict, GroupAccepted) or verdict.cause is RejectionCause.FILTER
    if judge is None or not judged:
        return not isinstance(verdict, GroupRejected)
    samples = {sample.sample: sample for sample in left.samples}
    return judge(msgspec.structs.replace(left.group, samples=samples)).keep
