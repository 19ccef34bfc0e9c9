"""`Restoration`: store the records of a copy at their original positions."""

import contextlib
import itertools
import secrets
from collections.abc import Sequence

from storage.jetstream.answer import ID
from storage.jetstream.append import LAST, in_one_batch
from storage.jetstream.read import pages
from storage.jetstream.retry import Away
from storage.jetstream.send import Refused, send
from storage.jetstream.stream import Stream
from storage.log import MAX_EVENT_BYTES, ForeignRecord, Recorded, not_the_end

Record = Recorded | ForeignRecord


class Restoration:
    """See `Restorable.restore`."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def store(self, records: Sequence[Record]) -> None:
        """Raises Conflict, LogUnavailable."""
        retry = self._stream.connection.retry()
        while records := await self._left(records):
            try:
                sent = await self._send(records)
            except (Away, Refused) as error:
                # The records may be stored nevertheless, or another writer was first: `_left` finds out.
                await retry.pause(error)
                continue
            if sent != records[0].position:
                raise not_the_end(self._stream.run, records[0], await self._stream.end())

    async def _left(self, records: Sequence[Record]) -> Sequence[Record]:
        """Return the records that are not stored yet. Raises Conflict if the log has other records, or ends before."""
        end = await self._stream.end()
        if not records or records[0].position == end + 1:
            return records
        there = min(end, records[-1].position)
        if records[0].position > there:
            raise not_the_end(self._stream.run, records[0], end)
        expected = iter(records)
        async with contextlib.aclosing(pages(self._stream, records[0].position, there, None)) as read:
            async for page in read:
                for stored, record in zip(page, expected, strict=False):
                    # A foreign subject with wildcards is stored with the entrance through which it came.
                    if stored.data != record.data or (
                        stored.subject != record.subject and isinstance(record, Recorded)
                    ):
                        raise not_the_end(self._stream.run, record, end)
        return [record for record in records if record.position > there]

    async def _send(self, records: Sequence[Record]) -> int:
        """Send as many records as fit into one batch, and return the position of the first. Raises Away, Refused."""
        if _is_larger_than_events(records[0]):  # no header fits: sent alone, without a fence
            incoming = self._stream.incoming(records[0].subject)
            return await send(self._stream.connection, [(incoming, records[0].data)], [{}])
        together = list(itertools.takewhile(lambda record: not _is_larger_than_events(record), records))
        headers = [{ID: record.envelope.id} if isinstance(record, Recorded) else {} for record in together]
        headers[0][LAST] = str(together[0].position - 1)  # a fence on the whole log: no other writer can get between
        messages = [(self._stream.incoming(record.subject), record.data) for record in together]
        return await send(self._stream.connection, messages, in_one_batch(headers, secrets.token_hex(11)))


def _is_larger_than_events(record: Record) -> bool:
    return len(record.data) > MAX_EVENT_BYTES
