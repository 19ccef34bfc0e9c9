"""Decide by a scan of every sample of every open group, which the index must not change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from schemas.batches import BatchSealed
from schemas.evals import EvalCompleted
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.rollouts import RolloutRequested
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.accept import GroupFilter
from slime_events.loop.conductor.plan import Plan

UNDER_WAY = ("requested", "running")


def gist(events: Iterable[Event]) -> list[Any]:
    """Return the decisions in these events, without what follows from them."""
    kinds = {
        GroupAccepted: lambda e: ("accepted", e.group),
        GroupRejected: lambda e: ("rejected", e.group, e.cause.value),
        BatchSealed: lambda e: ("sealed", e.step, e.groups, e.suspends),
        RolloutRequested: lambda e: ("again", e.sample, e.attempt, e.min_version, e.mask_older),
        EvalCompleted: lambda e: ("evaluated", e.dataset, e.version),
    }
    return [kinds[type(event)](event) for event in events if getattr(event, "attempt", 1)]


class PlainScan:
    """The decisions about a state and a plan of a run without a rollout function."""

    def __init__(self, state: RunState, plan: Plan, judge: GroupFilter) -> None:
        self.state, self.plan, self.judge = state, plan, judge
        training = [group for group in state.groups.values() if group.purpose == "train"]
        self.open = sorted((group for group in training if group.phase == "requested"), key=lambda group: group.order)

    def decisions(self) -> list[Any]:
        """The gist of a cycle, without the requests for waiting prompts."""
        state = self.state
        if state.phase != "running" or state.published < state.version or state.published < 0:
            if state.published < 0 or self.plan.publish_every == 1 or state.phase != "running":
                return []
            if state.version % self.plan.publish_every == 0 or state.version == self.plan.steps:
                return []
        verdicts = self.verdicts()
        sealed = self.sealed(verdicts)
        rests = self.plan.partial_rollout and state.next_step + len(sealed) > state.version + self.plan.max_staleness
        return [*verdicts, *sealed, *self.again(training=not rests), *self.evaluated()]

    def retries(self, sample: SampleState) -> bool:
        return sample.failed_as in ("engine", "agent") and sample.failures < self.plan.max_attempts

    def ended(self, group: GroupState) -> bool:
        lost = [s for s in group.samples.values() if s.phase == "failed" and not self.retries(s)]
        over = ("graded", "ungraded", "completed") if lost else ("graded", "ungraded")
        rest = [s for s in group.samples.values() if s not in lost]
        return bool(group.samples) and all(sample.phase in over for sample in rest)

    def last(self, group: GroupState) -> int:
        return group.oldest + self.plan.staleness_bound

    def too_late(self, groups: Iterable[GroupState], step: int) -> bool:
        """Whether a group is beyond its last step if each step takes the most urgent."""
        urgent = sorted(self.last(group) for group in groups)
        return any(step + place // self.plan.groups > last for place, last in enumerate(urgent))

    def verdicts(self) -> list[Any]:
        state, plan, verdicts = self.state, self.plan, list[Any]()
        ended = [group for group in self.open if self.ended(group)]
        if plan.in_prompt_order:
            ended = [group for place, group in enumerate(self.open) if ended[: place + 1] == self.open[: place + 1]]
        taken = [state.groups[name] for name in state.accepted]
        left, room = state.unsealed_groups, plan.groups - len(taken) - len(ended)
        for group in ended:
            broken = next((s.phase for s in group.samples.values() if s.phase in ("failed", "ungraded")), None)
            step = state.next_step + len(taken) // plan.groups
            late = step > self.last(group) and (plan.in_prompt_order or self.too_late([*taken, group], state.next_step))
            if broken is not None:
                verdict: Any = ("rejected", group.group, "rollout_failed" if broken == "failed" else "reward_failed")
            elif late:
                verdict = ("rejected", group.group, "stale")
            elif not plan.verdicts_at_once and room > 0:
                verdict = None
            else:
                decision = self.judge(group)
                keep = decision.keep or (decision.keep_when_insufficient and left <= plan.groups)
                verdict = ("accepted", group.group) if keep else ("rejected", group.group, "filter")
            left -= verdict is not None and verdict[0] == "rejected"
            taken += [group] if verdict is None or verdict[0] == "accepted" else []
            verdicts += [verdict] if verdict else []
        whole = plan.verdicts_at_once or len(taken) >= plan.groups
        return [verdict for verdict in verdicts if whole or verdict[0] == "rejected"]

    def sealed(self, verdicts: list[Any]) -> list[Any]:
        state, plan, step = self.state, self.plan, self.state.next_step
        fresh = {verdict[1] for verdict in verdicts}
        accepted = [*state.accepted, *(verdict[1] for verdict in verdicts if verdict[0] == "accepted")]
        groups = [state.groups[name] for name in accepted]
        if step >= plan.steps or step > state.version + plan.max_staleness or len(groups) < plan.groups:
            return []
        if not plan.in_prompt_order:
            groups.sort(key=self.last)
        undecided = [group for group in self.open if group.group not in fresh]
        if undecided and self.too_late([*groups[plan.groups :], *undecided], step + 1):
            return []
        boundary = plan.partial_rollout and step + 1 > state.version + plan.max_staleness
        running = any(s.phase in UNDER_WAY for group in undecided for s in group.samples.values())
        return [("sealed", step, tuple(group.group for group in groups[: plan.groups]), boundary and running)]

    def again(self, *, training: bool) -> list[Any]:
        requests = []
        for group in sorted(self.state.groups.values(), key=lambda group: group.position):
            if group.phase == "requested" and (training or group.purpose != "train"):
                for sample in group.samples.values():
                    masks = self.plan.mask_offpolicy and sample.suspensions > 0
                    if sample.phase == "suspended":
                        requests.append(("again", sample.sample, sample.attempt + 1, self.state.published, masks))
                    elif sample.phase == "failed" and self.retries(sample):
                        version = max(sample.min_version, 0)
                        requests.append(("again", sample.sample, sample.attempt + 1, version, masks))
        return requests

    def evaluated(self) -> list[Any]:
        every = self.state.evals.values()
        done = [each for each in every if all(self.ended(self.state.groups[name]) for name in each.groups)]
        return [("evaluated", each.dataset, each.version) for each in done]
