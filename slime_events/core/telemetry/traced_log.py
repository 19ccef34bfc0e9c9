"""`TracedLog`: an event log that records the span which ends with each event that was appended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from slime_events.core.telemetry.telemetry import Telemetry
from storage.log import Append, Consumer, EventLog, Recorded, Subjects


class TracedLog:
    """Passes everything on to `log`; what was appended ends its span."""

    def __init__(self, log: EventLog, telemetry: Telemetry) -> None:
        self._log, self._telemetry = log, telemetry

    @property
    def run(self) -> str:
        """The run whose log this is."""
        return self._log.run

    async def append(self, appends: Sequence[Append]) -> list[int]:
        """As the log's; a span is recorded only for what is in the log."""
        positions = await self._log.append(appends)
        # The next append goes first: spans are made while the log stores it.
        asyncio.get_running_loop().call_soon(self._record, appends)
        return positions

    def _record(self, appends: Sequence[Append]) -> None:
        for append in appends:
            self._telemetry.said(append.envelope)

    def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:
        """As the log's."""
        return self._log.read(start, subject, follow=follow)

    async def last(self, subject: str) -> Recorded | None:
        """As the log's."""
        return await self._log.last(subject)

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        """As the log's."""
        return await self._log.last_of_each(subjects)

    async def position(self) -> int:
        """As the log's."""
        return await self._log.position()

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> Consumer:
        """As the log's."""
        return await self._log.consume(name, subject, lease_s=lease_s, start=start)

    async def done_up_to(self, name: str) -> int:
        """As the log's."""
        return await self._log.done_up_to(name)

    async def close(self) -> None:
        """Close the log; the telemetry is its owner's."""
        await self._log.close()
