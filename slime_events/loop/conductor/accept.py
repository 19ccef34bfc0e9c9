"""Verdicts on groups whose samples have all ended: which groups to train on."""

from collections.abc import Callable, Sized
from itertools import takewhile
from typing import Any

import msgspec

from schemas.errors import PlugPointError
from schemas.event import Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from slime_events.core.state.group import GroupState, SamplePhase
from slime_events.core.state.group_index import GroupIndex
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.draw import may_retry
from slime_events.loop.conductor.plan import Plan, last_steps, stale
from slime_events.plugins.filters.decide import FilterDecision, should_drop

GroupFilter = Callable[[GroupState], FilterDecision]
"""The filter as the conductor calls it. Raises PlugPointError if the user's function is broken."""

Verdict = GroupAccepted | GroupRejected

# Bound once: every cycle reads them for every open sample.
_COMPLETED, _FAILED, _UNGRADED = SamplePhase.COMPLETED, SamplePhase.FAILED, SamplePhase.UNGRADED
_GRADED = frozenset({SamplePhase.GRADED, _UNGRADED})


def has_ended(group: GroupState, plan: Plan) -> bool:
    """Return whether all samples of a group have ended.

    If a rollout failed permanently, completed samples of the group need no reward: a grader of whole groups gives none.
    """
    failed = completed = False
    for sample in group.samples.values():
        phase = sample.phase
        if phase in _GRADED:
            continue
        if phase is _COMPLETED:
            completed = True
        elif phase is _FAILED and not may_retry(sample, plan):
            failed = True
        else:
            return False
    return bool(group.samples) and (failed or not completed)


def verdicts(state: RunState, plan: Plan, group_filter: GroupFilter) -> list[Verdict]:
    """Return a verdict on each group that can be decided; in prompt order, a group waits for earlier requested ones.

    Without a filter (`verdicts_at_once` is off), acceptances wait until they fill a batch, because a single acceptance
    has no effect.
    """
    index, dropped = state.index, [_dropped(name) for name in state.by_function.dropped]
    if not (plan.verdicts_at_once or plan.by_function or index.failed or _fills(index.settled, state, plan)):
        return [*dropped]
    decided: list[Verdict] = []
    accepted: list[GroupState] = []
    remaining, ended = state.unsealed_groups, _ended(index, plan)
    filters = plan.verdicts_at_once or len(state.accepted) + len(ended) >= plan.groups
    is_plain = not (filters or plan.by_function or _is_late(state, plan))
    for group in ended:
        if is_plain and group.group not in index.failed:  # no verdict yet, as for most groups in most cycles
            accepted.append(group)
            continue
        verdict: Verdict | None = _broken(group) or stale(group, accepted, state, plan)
        if verdict is None and filters:
            verdict = _filtered(group, group_filter, insufficient=remaining <= plan.groups)
        if isinstance(verdict, GroupRejected):
            remaining -= 1
        else:
            accepted.append(group)
        if verdict is not None:
            decided.append(verdict)
    decided += dropped
    rejected: list[Verdict] = [verdict for verdict in decided if isinstance(verdict, GroupRejected)]
    enough = plan.verdicts_at_once or len(state.accepted) + len(accepted) >= plan.groups
    return decided if enough else rejected


def _fills(ended: Sized, state: RunState, plan: Plan) -> bool:
    """Return whether these groups may fill a batch, or one of them may be too late."""
    return len(state.accepted) + len(ended) >= plan.groups or _is_late(state, plan)


def _is_late(state: RunState, plan: Plan) -> bool:
    """Return whether the next step is too late for a settled group."""
    return min(last_steps(state.index.settled_ages, plan), default=state.next_step) < state.next_step


def _ended(index: GroupIndex, plan: Plan) -> list[GroupState]:
    """Return the groups that may get a verdict, in the order of their requests."""
    failed = {
        name: group
        for name, group in index.failed.items()
        if group.purpose is Purpose.TRAIN and name not in index.settled and has_ended(group, plan)
    }
    if plan.in_prompt_order:
        begin = takewhile(lambda item: item[0] in index.settled or item[0] in failed, index.requested.items())
        return [group for _, group in begin]
    return sorted([*index.settled.values(), *failed.values()], key=lambda group: group.order)


def _broken(group: GroupState) -> GroupRejected | None:
    """Return the rejection of a group without a rollout or a reward; None if it has all of them."""
    for sample in group.samples.values():
        if sample.phase is _FAILED or sample.phase is _UNGRADED:
            failed = sample.phase is _FAILED
            return GroupRejected(
                group=group.group,
                cause=RejectionCause.ROLLOUT_FAILED if failed else RejectionCause.REWARD_FAILED,
                reason=f"{sample.sample}: {sample.failure}",
                samples=tuple(group.samples),
            )
    return None


def _dropped(group: str) -> GroupRejected:
    reason = "the rollout function was given it, and neither returned it nor gave it back (data_source.add_samples)"
    return GroupRejected(group=group, cause=RejectionCause.NOT_RETURNED, reason=reason)


def _filtered(group: GroupState, group_filter: GroupFilter, *, insufficient: bool) -> Verdict:
    """Return the filter's verdict. insufficient: a rejection would leave the step too few groups (slime's fallback)."""
    about: dict[str, Any] = {"group": group.group, "samples": tuple(group.samples), "rewards": group.graded}
    try:
        decision = group_filter(group)
    except PlugPointError as error:
        return GroupRejected(**about, cause=RejectionCause.FILTER_RAISED, reason=str(error))
    figures = msgspec.structs.asdict(decision.figures)
    about |= {"filter": decision.filter, "filter_digest": decision.digest}
    about |= {"figures": {name: float(value) for name, value in figures.items() if value is not None}}
    if not should_drop(decision, insufficient=insufficient):
        return GroupAccepted(**about, reason=decision.reason)
    reason = decision.reason or "the filter gave no reason"
    return GroupRejected(**about, cause=RejectionCause.FILTER, reason=reason)
