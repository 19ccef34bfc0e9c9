"""`EventLog`: the one place where everything that happened is kept. The in-memory log defines what it means.

The ladder: `Append` (an event and its fence) -> `EventLog.append` (atomic) -> `read` (in order) -> `consume` (competing).

Semantics that every back-end keeps, proved by one contract suite:
- Positions are 1, 2, 3, ... without holes, given by the log. All appends of one call are stored together or not at all,
  on consecutive positions, and are durable before the call returns.
- A fence names a subject filter and the position that the writer believes to be the last there (0: nothing). Where the
  log has moved on, the whole call is refused with `Conflict` and nothing is stored.
- An event whose id is already stored under its subject is the same event: it is not stored again, its fence is not
  looked at, and its old position is returned. So any append may be retried after any doubt.
- A reader sees every event from its position on, in order, once.
- A consumer name stands for one queue over a filter: each event goes to one of its takers, again after `lease_s` without
  `working` or `done`, until it is done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Fence:
    """The last position that the writer knows of under `subject` (a filter; 0: nothing there yet)."""

    subject: str
    position: int


@dataclass(frozen=True, slots=True)
class Append:
    """One event to store, on the condition of its fence (None: no condition but its own id)."""

    envelope: Envelope
    fence: Fence | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One stored event. `data` are the exact bytes."""

    position: int
    subject: str
    envelope: Envelope
    data: bytes


def once(envelope: Envelope) -> Append:
    """An event that may stand only once under its subject: whoever says it first is right."""
    return Append(envelope, Fence(envelope.subject, 0))


class Delivery(Protocol):
    """One event handed to one taker of a consumer."""

    @property
    def recorded(self) -> Recorded:
        """What is to be worked on."""

    @property
    def attempt(self) -> int:
        """1 at first, more after redeliveries."""

    async def working(self) -> None:
        """Renew the lease. Call it well within `lease_s`."""

    async def done(self) -> None:
        """It will not be delivered again."""

    async def release(self) -> None:
        """Give it back at once."""


class Consumer(Protocol):
    """A taker of a named queue."""

    async def take(self, limit: int, wait_s: float) -> list[Delivery]:
        """Up to `limit` deliveries; an empty list after `wait_s` without any."""

    async def close(self) -> None:
        """Stop taking. What was taken and not done comes back to others when its lease is over."""


class EventLog(Protocol):
    """See the module's text for what each call promises."""

    @property
    def run(self) -> str:
        """The run whose log this is."""

    async def append(self, appends: Sequence[Append]) -> list[int]:
        """Store all or nothing; their positions in the given order. Raises Conflict, LogUnavailable, EventTooLarge."""

    def read(self, start: int = 1, subject: str | None = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """Events from position `start` that match the filter. Ends at the last one there is, or follows for ever."""

    async def last(self, subject: str) -> Recorded | None:
        """The last event that matches the filter."""

    async def position(self) -> int:
        """The last position, 0 for an empty log."""

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0) -> Consumer:
        """A taker of the queue `name`."""

    async def close(self) -> None:
        """Let go of connections; what was stored stays."""
