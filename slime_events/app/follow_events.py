"""`event_batches`: selected events of a run, from its log and, while it is running, as they are appended."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas.batches import BatchSealed
from schemas.doc import doc
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
"""Seconds without an event, after the end of a run, before following stops."""
BATCH = 1024
"""Most selected events in a batch, if the log is read and not followed."""

IsRunning = Callable[[], Awaitable[bool]]
"""Whether a launcher is running."""


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Selects events that match every field."""

    types: Annotated[tuple[str, ...], doc("Event types (`rollout.completed`) or nouns (`rollout`); empty for all")] = ()
    group: Annotated[str | None, doc("Only events about this group")] = None
    sample: Annotated[str | None, doc("Only events about this sample")] = None
    start: Annotated[int, doc("First position")] = 1

    def takes(self, recorded: Recorded) -> bool:
        """Whether the filter selects an event."""
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
    """Return the types. Raises InvalidValue, with the nearest names, for a type that no event has."""
    names = (*BY_TYPE, *NOUNS)
    for name in types:
        if name not in names:
            raise InvalidValue(f"--type {name}: there is no such event type.{did_you_mean(name, names)}")
    return tuple(types)


async def event_batches(
    log: Readable, query: EventFilter, *, follow: IsRunning | None
) -> AsyncGenerator[list[Recorded], None]:
    """Yield the selected events in the log and, with `follow`, those appended later.

    Stops when the run has ended, or when `follow` says that no launcher is running and no event arrives.
    """
    if follow is None:
        selected: list[Recorded] = []
        async for recorded in log.read(query.start):
            if query.takes(recorded):
                selected.append(recorded)
            if len(selected) == BATCH:
                yield selected
                selected = []
        yield selected
        return
    last = await log.last(pattern(log.run, "run", ">"))
    over = last is not None and is_over(False, last.envelope.event)
    async with Follower(log, query.start) as follower:
        while True:
            batch = await follower.next(wait_s=QUIET_S)
            # Until the follower has caught up, an empty batch means a slow log, not the end of the log.
            if not batch and follower.caught_up and (over or not await follow()):
                return
            for recorded in batch:
                over = is_over(over, recorded.envelope.event)
            yield [recorded for recorded in batch if query.takes(recorded)]


async def events(log: Readable, query: EventFilter, *, follow: IsRunning | None) -> AsyncIterator[Recorded]:
    """Yield the events of `event_batches` one by one."""
    async for batch in event_batches(log, query, follow=follow):
        for recorded in batch:
            yield recorded
