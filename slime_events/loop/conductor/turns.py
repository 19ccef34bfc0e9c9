"""`next_turns`: whose prompts are requested next, by the shares of their sources and by priority. Pure."""

from collections import Counter, defaultdict, deque
from typing import NamedTuple

from msgspec import UNSET

from schemas.event import Purpose
from slime_events.core.config.per_source import FILE
from slime_events.core.state.group import GroupPhase, GroupState
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan

OTHERS = ""
"""All sources that no share names, together."""


class Turns(NamedTuple):
    """groups: that wait, to be requested now, in this order. draws: further prompts that the run is to draw itself."""

    groups: list[str]
    draws: int


def next_turns(state: RunState, plan: Plan, count: int) -> Turns:
    """Who gets the next `count` turns.

    With shares each turn goes to the source that lacks most of its share of the groups under way, this turn included;
    a source without a prompt is passed over, so no turn is lost. One without a share gets what the others leave.
    """
    if count <= 0:
        return Turns([], 0)
    if not plan.shares:
        groups = _by_priority(state, state.waiting)[:count]
        return Turns(groups, count - len(groups))
    queues: dict[str, deque[str]] = defaultdict(deque)
    for name in _by_priority(state, state.waiting):
        queues[share_of(state.groups[name], plan)].append(name)
    drawn = (FILE if FILE in plan.shares else OTHERS) if plan.draws else None
    parts = {OTHERS: max(0.0, 1.0 - sum(plan.shares.values())), **plan.shares}
    under_way = Counter(share_of(group, plan) for group in state.groups.values() if _is_under_way(group))
    turns = Turns([], 0)
    for _ in range(count):
        able = [source for source in parts if queues[source] or source == drawn]
        if not able:
            break
        total = under_way.total() + 1
        source = max(able, key=lambda one: (parts[one] > 0, parts[one] * total - under_way[one]))
        under_way[source] += 1
        if queues[source]:
            turns.groups.append(queues[source].popleft())
        else:
            turns = turns._replace(draws=turns.draws + 1)
    return turns


def share_of(group: GroupState, plan: Plan) -> str:
    """The source whose share a group counts to."""
    name = FILE if group.share is UNSET else group.share
    return name if name in plan.shares else OTHERS


def _is_under_way(group: GroupState) -> bool:
    return group.purpose is Purpose.TRAIN and group.phase is not GroupPhase.SUBMITTED


def _by_priority(state: RunState, waiting: list[str]) -> list[str]:
    """The higher first; of equal ones those that came first."""
    found = {name: state.groups[name].priority for name in waiting}
    if all(priority is UNSET for priority in found.values()):
        return waiting
    return sorted(waiting, key=lambda name: 0 if (priority := found[name]) is UNSET else -priority)
