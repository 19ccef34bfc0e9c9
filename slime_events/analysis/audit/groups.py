"""Groups: one outcome per completed sample, and one verdict per group on the rewards assigned."""

import math
from collections import Counter
from collections.abc import Sequence

from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.rewards import RewardAssigned, RewardFailed
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Fate, GroupEntry, Ledger
from slime_events.analysis.audit.report import Counts


class Rewards(Check):
    """A sample has a reward or a reason for having none, never both."""

    name = "rewards"
    promise = "one outcome per completed sample, after its completion"
    counted = ("assigned", "failed")

    def _on_reward_assigned(self, event: RewardAssigned | RewardFailed) -> None:
        self.seen["assigned" if isinstance(event, RewardAssigned) else "failed"] += 1
        if isinstance(event, RewardAssigned) and not math.isfinite(event.value):
            self.find(f"its value is {event.value}", "the group's advantages are not numbers")
        sample = self.ledger.samples.get(event.sample)
        if sample is None or sample.fate is not Fate.COMPLETED:
            self.find("no completed rollout of the sample comes before it", "there was nothing to reward")
            return
        if sample.graded:
            self.find(
                f"the sample already had its outcome at position {sample.graded}", "two graders may disagree about it"
            )
        if event.group != sample.group.group:
            wrong = f"it names group {event.group}, and the sample belongs to {sample.group.group}"
            self.find(wrong, "the reward counts for another group")

    _on_reward_failed = _on_reward_assigned

    def counts(self) -> Counts:
        samples = [s for s in self.ledger.samples.values() if s.group.purpose is not Purpose.CALL]
        waiting = sum(1 for s in samples if s.fate is Fate.COMPLETED and not s.graded and not s.group.decided)
        return self.seen | {"waiting for a grader": waiting}


Verdict = GroupAccepted | GroupRejected
BROKEN = (RejectionCause.ROLLOUT_FAILED, RejectionCause.REWARD_FAILED)
"""Causes of a rejection without a filter: a part of the group failed, so the event may hold no rewards."""


class Verdicts(Check):
    """One verdict per group, on the rewards assigned, with figures computed from them, and in prompt order if that is
    set.
    """

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
            self.find("no training group of that name was submitted", "the verdict is about nothing")
            return
        if group.decided:
            self.find(f"the group was already decided at position {group.decided}", "it may be trained on twice")
            return
        self._members(event, group)
        self._inputs(event, group)
        self._figures(event, group)
        if group.order < 0:  # a rollout function had the group and has not returned it
            return
        self._in_order(group, accepted=isinstance(event, GroupAccepted))

    _on_group_rejected = _on_group_accepted

    def _members(self, event: Verdict, group: GroupEntry) -> None:
        if event.samples != tuple(group.samples):
            wrong = f"its {len(event.samples)} samples are not the group's {len(group.samples)} in order"
            self.find(wrong, "a sample was removed or added")
        plan = self.ledger.rules.plan
        requested = sum(1 for sample in group.samples.values() if not sample.rollout)
        if plan is not None and not plan.by_function and requested != plan.samples:
            wrong = f"{requested} samples were requested, and --n-samples-per-prompt is {plan.samples}"
            self.find(wrong, "its advantages are over another group size")

    def _inputs(self, event: Verdict, group: GroupEntry) -> None:
        members, cause = group.samples.values(), event.cause if isinstance(event, GroupRejected) else None
        assigned = [sample.reward for sample in members]
        if (event.rewards or cause not in BROKEN) and list(event.rewards) != assigned:
            wrong = f"it used rewards {_few(event.rewards)}, and {_few(assigned)} were assigned"
            self.find(wrong, "the verdict does not follow from the log")
        if cause is RejectionCause.ROLLOUT_FAILED and all(s.fate is not Fate.FAILED for s in members):
            self.find("none of its rollouts had failed", "the verdict does not follow from the log")
        if cause is RejectionCause.REWARD_FAILED and not any(s.graded and s.reward is None for s in members):
            self.find("none of its rewards had failed", "the verdict does not follow from the log")

    def _figures(self, event: Verdict, group: GroupEntry) -> None:
        """Check the figures. They are over rollouts: the first sample of each represents its further ones."""
        members = zip(group.samples.values(), event.rewards, strict=False)
        expected = figures([reward for sample, reward in members if not sample.rollout])
        expected["oldest_version"] = float(group.oldest)
        for name, value in event.figures.items():
            if name in expected and not math.isclose(value, expected[name], rel_tol=1e-9, abs_tol=1e-12):
                wrong = f"its {name} is {value!r}, and the log gives {expected[name]!r}"
                self.find(wrong, "it is based on different figures")

    def _in_order(self, group: GroupEntry, *, accepted: bool) -> None:
        """Check that in prompt order every group requested before this one has ended.

        Without a filter a group is accepted with the batch that it completes, so a rejection may come before that.
        """
        plan = self.ledger.rules.plan
        if plan is None or not plan.in_prompt_order:
            return
        ended = max((sample.graded for sample in group.samples.values()), default=0)
        too_early = [position for order, position in self._rejected if order > group.order and ended > position]
        if group.order < self._order or too_early:
            wrong = "a group requested later was decided before it"
            self.find(wrong, "luck or length decided which groups are trained on")
        if accepted or plan.verdicts_at_once:
            self._order = max(self._order, group.order)
            self._rejected = [rejected for rejected in self._rejected if rejected[0] > group.order]
        else:
            self._rejected.append((group.order, self.recorded.position))

    def counts(self) -> Counts:
        rejected = {f"rejected ({cause})": count for cause, count in sorted(self._causes.items())}
        return self.seen | rejected


def figures(rewards: Sequence[float]) -> dict[str, float]:
    """Return the figures of a group's rewards. std is unbiased, and absent for a single reward."""
    if not rewards:
        return {}
    try:
        mean = math.fsum(rewards) / len(rewards)
    except OverflowError:  # rewards that earlier versions admitted
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
