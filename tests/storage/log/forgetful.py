"""`ForgetfulLog`: a log on JetStream out of which everything leaves as soon as it may, before each call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from schemas.errors import SchemaError
from storage.archive.reader import ArchiveReader
from storage.archive.writer import ArchiveWriter
from storage.jetstream.consumer import JetStreamConsumer
from storage.jetstream.log import JetStreamLog
from storage.log import Append, Recorded, Subjects

LATER = "later"


class ForgetfulLog(JetStreamLog):
    """archive: its folder. queues: of the run, over all logs of a test; what they still need stays. LATER: made later.
    one_by_one: a run has one archivist.
    """

    archive: str
    queues: set[str]
    one_by_one: asyncio.Lock

    async def forget(self) -> None:
        """Archive all there is, and let it leave."""
        async with self.one_by_one:
            await self._forget()

    async def _forget(self) -> None:
        end = await self.end()
        writer = ArchiveWriter(self.archive, self.run)
        if writer.next_position <= end:
            with contextlib.suppress(SchemaError):  # of a newer version's event: nothing leaves from there on
                async for recorded in super().read_records(writer.next_position):
                    writer.add(recorded)
            writer.seal()
        upto = min([writer.next_position - 1, *[await self.done_up_to(queue) for queue in self.queues]])
        if upto:
            await self.remove_archived(ArchiveReader(self.archive, self.run), upto)
            assert (await self.extent()).first > upto

    async def append(self, appends: Sequence[Append]) -> list[int]:
        await self.forget()
        return await super().append(appends)

    async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> AsyncIterator[Recorded]:  # type: ignore[override]
        await self.forget()
        async for recorded in super().read(start, subject, follow=follow):
            yield recorded

    async def last(self, subject: str) -> Recorded | None:
        await self.forget()
        return await super().last(subject)

    async def last_of_each(self, subjects: Sequence[str]) -> dict[str, Recorded]:
        await self.forget()
        return await super().last_of_each(subjects)

    async def subjects(self, pattern: str, start: int = 1) -> list[str]:
        await self.forget()
        return await super().subjects(pattern, start)

    async def position(self) -> int:
        await self.forget()
        return await super().position()

    async def consume(self, name: str, subject: str, *, lease_s: float = 30.0, start: int = 1) -> JetStreamConsumer:
        self.queues.discard(LATER)
        self.queues.add(name)
        return await super().consume(name, subject, lease_s=lease_s, start=start)
