"""`next_turns`: whose prompts are requested next, by the shares of their sources and by priority. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from typing import NamedTuple

from msgspec import UNSET

from schemas.event import Purpose
from slime_events.core.config.per_source import FILE
from slime_events.core.state.group import GroupState
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
        groups = list(islice(_by_priority(state, state.waiting), count))
        return Turns(groups, count - len(groups))
    queues: dict[str, Iterator[str]] = {
        source: _by_priority(state, _waiting_of(state, plan, source)) for source in (OTHERS, *plan.shares)
    }
    first = {source: next(queue, None) for source, queue in queues.items()}
    drawn = (FILE if FILE in plan.shares else OTHERS) if plan.draws else None
    parts = {OTHERS: max(0.0, 1.0 - sum(plan.shares.values())), **plan.shares}
    under_way = Counter(share_of(group, plan) for group in state.index.begun if group.purpose is Purpose.TRAIN)
    turns = Turns([], 0)
    for _ in range(count):
        able = [source for source in parts if first[source] is not None or source == drawn]
        if not able:
            break
        total = under_way.total() + 1
        source = max(able, key=lambda one: (parts[one] > 0, parts[one] * total - under_way[one]))
        under_way[source] += 1
        if (group := first[source]) is not None:
            turns.groups.append(group)
            first[source] = next(queues[source], None)
        else:
            turns = turns._replace(draws=turns.draws + 1)
    return turns


def share_of(group: GroupState, plan: Plan) -> str:
    """The source whose share a group counts to."""
    return _share_of(None if group.share is UNSET else group.share, plan)


def _share_of(source: str | None, plan: Plan) -> str:
    name = FILE if source is None else source
    return name if name in plan.shares else OTHERS


def _waiting_of(state: RunState, plan: Plan, share: str) -> Iterable[str]:
    """The groups that wait and count to a share, in the order in which they came."""
    own = [names for source, names in state.index.by_share.items() if _share_of(source, plan) == share]
    return own[0] if len(own) == 1 else merge(*own, key=lambda name: state.groups[name].position)


def _by_priority(state: RunState, waiting: Iterable[str]) -> Iterator[str]:
    """The higher first; of equal ones those that came first. Nothing is looked at beyond what is taken, but for those
    that have a priority.
    """
    found = {} if state.priorities is UNSET else state.priorities
    if not found:
        return iter(waiting)
    names = list(waiting)
    ranked = sorted((name for name in names if name in found), key=lambda name: -found[name])
    return chain(
        (name for name in ranked if found[name] > 0),
        (name for name in names if not found.get(name)),
        (name for name in ranked if found[name] < 0),
    )
