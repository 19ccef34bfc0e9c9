"""`look_ahead`: who had the rollouts that were under way at a moment, as the log came to say afterwards.

An engine that takes a request says nothing until it has a chunk or the end of it, so at the moment itself the log does
not know. Whoever looks back does.
"""

from __future__ import annotations

import contextlib

from schemas.event import Event
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutSuspended
from schemas.turns import TurnBegun
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.view import Later, without_engine
from storage.log import Readable

AT_MOST = 5_000
"""Events that are looked at."""


async def look_ahead(log: Readable, moment: Moment) -> dict[str, Later]:
    """By sample, of those under way without an engine; some are missing where nothing is said of them soon."""
    wanted, found = set(without_engine(moment)), dict[str, Later]()
    if not wanted:
        return found
    async with contextlib.aclosing(log.read(moment.position + 1)) as read:  # type: ignore[type-var]
        async for recorded in read:
            said = _said(recorded.envelope.event, recorded.envelope.at)
            if said is not None and said[0] in wanted:
                found.setdefault(*said)
                wanted.discard(said[0])
            if not wanted or recorded.position >= moment.position + AT_MOST:
                break
    return found


def _said(event: Event, at: int) -> tuple[str, Later] | None:
    if isinstance(event, RolloutCompleted):
        took = event.timings.generating + event.timings.updating
        return event.rollout or event.sample, Later(event.engine, at - int(took * 1e9))
    if isinstance(event, RolloutProgressed | RolloutSuspended | RolloutFailed | TurnBegun):
        return event.sample, Later(event.engine, None)
    return None
