"""`next_turns`: which prompts are requested next, by the shares of their sources and by priority. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from typing import Annotated, NamedTuple

from msgspec import UNSET

from schemas.doc import doc
from slime_events.core.config.per_source import FILE
from slime_events.core.state.run import RunState
from slime_events.loop.conductor.plan import Plan

OTHERS = ""
"""Name of all sources without a share, together."""


class Turns(NamedTuple):
    """The prompts to request next."""

    groups: Annotated[list[str], doc("waiting groups to request now, in this order")]
    draws: Annotated[int, doc("further prompts that the run must draw itself")]


def next_turns(state: RunState, plan: Plan, count: int) -> Turns:
    """Return the prompts for the next `count` requests.

    With shares, each request goes to the source that lacks most of its share of open groups, including this request; a
    source without a prompt is skipped. Sources without a share get what is left.
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
    open_groups: Counter[str] = Counter()
    for source, number in state.index.shares.items():
        open_groups[share_of(source, plan)] += number
    turns = Turns([], 0)
    for _ in range(count):
        able = [source for source in parts if first[source] is not None or source == drawn]
        if not able:
            break
        total = open_groups.total() + 1
        source = max(able, key=lambda name: (parts[name] > 0, parts[name] * total - open_groups[name]))
        open_groups[source] += 1
        if (group := first[source]) is not None:
            turns.groups.append(group)
            first[source] = next(queues[source], None)
        else:
            turns = turns._replace(draws=turns.draws + 1)
    return turns


def share_of(source: str | None, plan: Plan) -> str:
    """Return the name of the share that groups of a source count to. source: None for the run's own prompts."""
    name = FILE if source is None else source
    return name if name in plan.shares else OTHERS


def _waiting_of(state: RunState, plan: Plan, share: str) -> Iterable[str]:
    """Return the waiting groups that count to a share, in order of arrival."""
    own = [names for source, names in state.index.by_share.items() if share_of(source, plan) == share]
    return own[0] if len(own) == 1 else merge(*own, key=lambda name: state.groups[name].position)


def _by_priority(state: RunState, waiting: Iterable[str]) -> Iterator[str]:
    """Return waiting groups by priority, highest first, then by arrival. Reads lazily unless there are priorities."""
    priorities = {} if state.priorities is UNSET else state.priorities
    if not priorities:
        return iter(waiting)
    names = list(waiting)
    ranked = sorted((name for name in names if name in priorities), key=lambda name: -priorities[name])
    return chain(
        (name for name in ranked if priorities[name] > 0),
        (name for name in names if not priorities.get(name)),
        (name for name in ranked if priorities[name] < 0),
    )
