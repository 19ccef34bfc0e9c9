"""`event_batches`: the events of a run that are asked for, as they come or as they came."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from schemas.batches import BatchSealed
from schemas.errors import InvalidValue
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import group_of
from schemas.registry import BY_TYPE, NOUNS
from schemas.subjects import pattern
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.run.participant import is_over
from storage.follow import Follower
from storage.log import Readable, Recorded

QUIET_S = 1.0
"""Seconds without an event after the end of a run, until nothing more is expected of it."""
BATCH = 1024
"""Most events of a batch that is read, not followed."""

IsOn = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are shown. types: whole types or nouns; the rest narrows further. start: first position."""

    types: tuple[str, ...] = ()
    group: str | None = None
    sample: str | None = None
    start: int = 1

    def takes(self, recorded: Recorded) -> bool:
        """Whether an event is one of those."""
        kind = recorded.envelope.type
        if self.types and kind not in self.types and kind.partition(".")[0] not in self.types:
            return False
        event = recorded.envelope.event
        sample = getattr(event, "sample", "")
        samples = event.samples if isinstance(event, BatchSealed | GroupAccepted | GroupRejected) else (sample,)
        if self.sample and self.sample not in samples:
            return False
        groups = event.groups if isinstance(event, BatchSealed) else (getattr(event, "group", "") or group_of(sample),)
        return not self.group or self.group in groups


def check_types(types: Sequence[str]) -> tuple[str, ...]:
    """The types themselves; InvalidValue with the nearest names where nothing is of one."""
    known = (*BY_TYPE, *NOUNS)
    for one in types:
        if one not in known:
            raise InvalidValue(f"--type {one}: there is no such event.{did_you_mean(one, known)}")
    return tuple(types)


async def event_batches(log: Readable, wanted: Wanted, *, follow: IsOn | None) -> AsyncGenerator[list[Recorded], None]:
    """What is in the log and, while the run is on, what comes. follow: whether a launcher is on; None: not at all.

    Ends by itself when the run has ended, or has no launcher any more and is quiet.
    """
    if follow is None:
        found: list[Recorded] = []
        async for recorded in log.read(wanted.start):
            if wanted.takes(recorded):
                found.append(recorded)
            if len(found) == BATCH:
                yield found
                found = []
        yield found
        return
    last = await log.last(pattern(log.run, "run", ">"))
    over = last is not None and is_over(False, last.envelope.event)
    async with Follower(log, wanted.start) as follower:
        while True:
            batch = await follower.next(wait_s=QUIET_S)
            # Silence before that is a log that answers slowly, not one without more.
            if not batch and follower.caught_up and (over or not await follow()):
                return
            for recorded in batch:
                over = is_over(over, recorded.envelope.event)
            yield [recorded for recorded in batch if wanted.takes(recorded)]


async def events(log: Readable, wanted: Wanted, *, follow: IsOn | None) -> AsyncIterator[Recorded]:
    """The events of `event_batches` one by one."""
    async for batch in event_batches(log, wanted, follow=follow):
        for recorded in batch:
            yield recorded
