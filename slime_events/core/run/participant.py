"""`Participant`: a process that appends events to a run."""

import os
import secrets
import socket
import time
from collections.abc import Iterable, Sequence

from schemas.envelope import Envelope, enclose
from schemas.event import Event, type_of
from schemas.runs import RunFailed, RunFinished, RunResumed
from schemas.subjects import about, of_type
from schemas.workers import WorkerJoined
from slime_events.core.run.run_address import Incarnation
from slime_events.core.telemetry.event_spans import traceparent_of
from storage.log import Append, EventLog, Fence, Recorded, once

_ENDS = frozenset({RunFinished, RunFailed, RunResumed})
"""The events that begin or end a run."""


class Participant:
    """Appends a process's events in envelopes. It reads the clock, so decisions do not have to.

    incarnation: the incarnation of the run that the process belongs to; None for a process that may outlive it.
    """

    def __init__(
        self,
        log: EventLog,
        role: str,
        name: str | None = None,
        *,
        trace_share: float = 0.0,
        incarnation: Incarnation | None = None,
    ) -> None:
        self.log, self.role, self._trace_share = log, role, trace_share
        self.incarnation = incarnation
        self.id = name or f"{role}-{secrets.token_hex(4)}"

    def enclose(self, event: Event, *, cause: str | None = None, traceparent: str | None = None) -> Envelope:
        """Return the event in an envelope. traceparent: of an outside sender; default: of the event's own span."""
        return enclose(
            self.log.run,
            event,
            at=time.time_ns(),
            producer=self.id,
            cause=cause,
            traceparent=traceparent or traceparent_of(self.log.run, event, self._trace_share),
        )

    async def append(self, events: Sequence[Event], *, cause: str | None = None) -> list[int]:
        """Append events that may exist only once per subject, all or none."""
        return await self.log.append([once(self.enclose(event, cause=cause)) for event in events])

    async def append_fenced(self, event: Event, fence: Fence | None = None) -> int:
        """Append an event whose subject may already have events."""
        return (await self.log.append([Append(self.enclose(event), fence)]))[0]

    async def join(self, seconds: dict[str, float], facts: dict[str, str] | None = None) -> None:
        """Append worker.joined. seconds: durations of the start's parts. facts: of machine and process, by name."""
        joined = WorkerJoined(
            worker=self.id,
            role=self.role,
            pid=os.getpid(),
            node=socket.gethostname(),
            facts=facts or {},
            seconds=seconds,
        )
        await self.append([joined])

    def is_over(self, over: bool, event: Event) -> bool:
        """Fold: return whether the run is over for this process, because it ended or was resumed without it."""
        if type(event) not in _ENDS:  # nearly every event
            return over
        if isinstance(event, RunResumed) and self.incarnation is not None:
            return event.incarnation > self.incarnation.number
        return is_over(over, event)


def is_over(over: bool, event: Event) -> bool:
    """Fold: return whether a run is over, which it is from its end until it is resumed."""
    return isinstance(event, RunFinished | RunFailed) or (over and not isinstance(event, RunResumed))


def subjects_of(run: str, folded: Iterable[type[Event]]) -> tuple[str, ...]:
    """Return the subjects of these event types and of the run's own events."""
    return (about(run, "run", "run"), *(of_type(run, type_of(cls)) for cls in folded))


async def run_events_before(position: int, worker: Participant) -> list[Recorded]:
    """Return the run's own events before a position, for a fold that begins there.

    They are those of the worker's incarnation, which repeat everything from earlier ones that still applies.
    """
    since = max(1, worker.incarnation.since) if worker.incarnation else 1
    if position <= since:
        return []
    read = worker.log.read(since, about(worker.log.run, "run", "run"))
    return [recorded async for recorded in read if recorded.position < position]
