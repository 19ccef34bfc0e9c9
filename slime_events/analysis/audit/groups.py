"""Groups: one reward for each completed sample, one verdict for each group on the rewards that its samples got."""

import math
from collections import Counter
from collections.abc import Sequence

from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.rewards import RewardAssigned, RewardFailed
from slime_events.analysis.audit.check import Check, Counts
from slime_events.analysis.audit.ledger import Fate, GroupEntry, Ledger


class Rewards(Check):
    """A sample has a reward or a reason why it has none, never both."""

    name = "rewards"
    promise = "one outcome per completed sample, after its completion"
    counted = ("assigned", "failed")

    def _on_reward_assigned(self, event: RewardAssigned | RewardFailed) -> None:
        self.seen["assigned" if isinstance(event, RewardAssigned) else "failed"] += 1
        if isinstance(event, RewardAssigned) and not math.isfinite(event.value):
            self.find(f"its value is {event.value}", "the group's advantages are not numbers")
        sample = self.ledger.samples.get(event.sample)
        if sample is None or sample.fate is not Fate.COMPLETED:
            self.find("no completed rollout of the sample comes before it", "a reward was given for nothing")
            return
        if sample.graded:
            self.find(f"the sample had its outcome at position {sample.graded}", "two graders disagree about it")
        if event.group != sample.group.group:
            wrong = f"it names group {event.group}, and the sample is of {sample.group.group}"
            self.find(wrong, "the reward counts for another group")

    _on_reward_failed = _on_reward_assigned

    def counts(self) -> Counts:
        samples = [one for one in self.ledger.samples.values() if one.group.purpose is not Purpose.CALL]
        waiting = sum(1 for s in samples if s.fate is Fate.COMPLETED and not s.graded and not s.group.decided)
        return self.seen | {"waiting for a grader": waiting}


Verdict = GroupAccepted | GroupRejected
BROKEN = (RejectionCause.ROLLOUT_FAILED, RejectionCause.REWARD_FAILED)
"""Causes of a rejection without a filter: a part of the group failed, so the event may hold no rewards."""


class Verdicts(Check):
    """One verdict per group, its rewards those assigned, its figures theirs; in prompt order where that was set."""

    name = "verdicts"
    promise = "once per group, on the rewards assigned, figures recomputed, in order"
    counted = ("accepted",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._causes: Counter[str] = Counter()
        self._order = -1
        self._rejected: list[tuple[int, int]] = []

    def _on_group_accepted(self, event: Verdict) -> None:
        if isinstance(event, GroupAccepted):
            self.seen["accepted"] += 1
        else:
            self._causes[event.cause.value] += 1
        group = self.ledger.groups.get(event.group)
        if group is None or group.purpose is not Purpose.TRAIN:
            self.find("no training group of that name was submitted", "something was decided about nothing")
            return
        if group.decided:
            self.find(f"the group was decided at position {group.decided}", "it may be trained on twice")
            return
        self._members(event, group)
        self._inputs(event, group)
        self._figures(event, group)
        if group.order < 0:  # a rollout function had it, and has not answered it
            return
        self._in_order(group, accepted=isinstance(event, GroupAccepted))

    _on_group_rejected = _on_group_accepted

    def _members(self, event: Verdict, group: GroupEntry) -> None:
        if event.samples != tuple(group.samples):
            wrong = f"it names {len(event.samples)} samples, and not the {len(group.samples)} of the group in order"
            self.find(wrong, "a sample was left out or added")
        plan = self.ledger.rules.plan
        requested = sum(1 for sample in group.samples.values() if not sample.rollout)
        if plan is not None and not plan.by_function and requested != plan.samples:
            wrong = f"{requested} samples were requested, and {plan.samples} are set"
            self.find(wrong, "its advantages are of another group size")

    def _inputs(self, event: Verdict, group: GroupEntry) -> None:
        members, cause = group.samples.values(), event.cause if isinstance(event, GroupRejected) else None
        assigned = [sample.reward for sample in members]
        if (event.rewards or cause not in BROKEN) and list(event.rewards) != assigned:
            wrong = f"it was taken on rewards {_few(event.rewards)}, and {_few(assigned)} were assigned"
            self.find(wrong, "the decision does not follow from the log")
        if cause is RejectionCause.ROLLOUT_FAILED and all(s.fate is not Fate.FAILED for s in members):
            self.find("none of its rollouts had failed", "the decision does not follow from the log")
        if cause is RejectionCause.REWARD_FAILED and not any(s.graded and s.reward is None for s in members):
            self.find("none of its rewards had failed", "the decision does not follow from the log")

    def _figures(self, event: Verdict, group: GroupEntry) -> None:
        """Figures are of rollouts: the first sample of each stands for its further ones."""
        members = zip(group.samples.values(), event.rewards, strict=False)
        expected = figures([reward for sample, reward in members if not sample.rollout])
        expected["oldest_version"] = float(group.oldest)
        for name, value in event.figures.items():
            if name in expected and not math.isclose(value, expected[name], rel_tol=1e-9, abs_tol=1e-12):
                wrong = f"its {name} is {value!r}, and the log gives {expected[name]!r}"
                self.find(wrong, "it was taken on other figures")

    def _in_order(self, group: GroupEntry, *, accepted: bool) -> None:
        """In prompt order a group is decided only after every group that was requested before it has ended.

        Without a filter a group is accepted with the batch that it fills, so a rejection may come before that.
        """
        plan = self.ledger.rules.plan
        if plan is None or not plan.in_prompt_order:
            return
        ended = max((sample.graded for sample in group.samples.values()), default=0)
        too_early = [position for order, position in self._rejected if order > group.order and ended > position]
        if group.order < self._order or too_early:
            wrong = "a group that was requested after it was decided before it"
            self.find(wrong, "luck or length decided what was trained on")
        if accepted or plan.verdicts_at_once:
            self._order = max(self._order, group.order)
            self._rejected = [one for one in self._rejected if one[0] > group.order]
        else:
            self._rejected.append((group.order, self.recorded.position))

    def counts(self) -> Counts:
        rejected = {f"rejected ({cause})": count for cause, count in sorted(self._causes.items())}
        return self.seen | rejected


def figures(rewards: Sequence[float]) -> dict[str, float]:
    """Of a group's rewards; std unbiased, absent for one."""
    if not rewards:
        return {}
    try:
        mean = math.fsum(rewards) / len(rewards)
    except OverflowError:  # rewards that an earlier version took
        mean = sum(rewards) / len(rewards)
    values = {"count": float(len(rewards)), "mean": mean, "min": min(rewards), "max": max(rewards)}
    if len(rewards) > 1:
        try:
            values["std"] = math.sqrt(math.fsum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
        except OverflowError:
            values["std"] = math.inf
    return values


def _few(values: Sequence[float | None]) -> str:
    shown = ", ".join("none" if value is None else f"{value:g}" for value in values[:8])
    return f"({shown}{', ...' if len(values) > 8 else ''})"
