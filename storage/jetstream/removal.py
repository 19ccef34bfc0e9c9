"""`remove_archived`: remove the beginning of a log from its stream, after it is in the archive.

    compare with the archive, byte for byte -> copy into the past stream -> change the entrance -> purge

Each step may be repeated, in any number of processes: the past stream only grows, and it holds every purged event.
storage/jetstream/long_stream.py explains why this order keeps fences and ids valid.
"""

import asyncio
import functools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from schemas.errors import ArchiveDamaged
from schemas.subjects import past_entrance, pattern
from storage.jetstream.append import LAST, in_one_batch
from storage.jetstream.error_codes import FENCE_FAILED, ErrorCode
from storage.jetstream.long_stream import HOLLOW, PAST_ID, LongStream, is_hollow, new_door
from storage.jetstream.retry import ApiError, Away
from storage.jetstream.stream import Stored

if TYPE_CHECKING:
    from storage.archive.manifest import SegmentManifest
    from storage.archive.reader import ArchiveReader
    from storage.archive.segment import Segment

    Read = Callable[[SegmentManifest], Segment]

_EXPECTED_STREAM = "Nats-Expected-Stream"


async def remove_archived(stream: LongStream, archive: "ArchiveReader", upto: int) -> None:
    """Remove every event up to position `upto` from the stream.

    Raises ArchiveDamaged, and removes nothing, if the archive does not hold exactly these events; StoreUnavailable,
    LogUnavailable.
    """
    if upto < await stream.first():
        return
    await _copy(stream, archive, upto)
    await _change_entrance(stream)
    await stream.connection.api(f"STREAM.PURGE.{stream.name}", {"seq": upto + 1})
    await stream.refresh()


async def _copy(stream: LongStream, archive: "ArchiveReader", upto: int) -> None:
    """Copy all events up to a position into the past stream. Another archivist may do the same concurrently."""
    retry, read = stream.connection.retry(), functools.lru_cache(1)(archive.segment)
    while (position := await stream.past.end() + 1) <= upto:
        page = await _compared(archive, read, await stream.page(position, upto))
        try:
            await _store(stream, [stored for stored in page if stored.position <= upto])
        except Away as error:
            await retry.pause(error)
        except ApiError as error:
            if error.code not in FENCE_FAILED:
                raise
            await retry.pause(error)


async def _compared(archive: "ArchiveReader", read: "Read", page: list[Stored]) -> list[Stored]:
    """Return the part of a page that is in one archive segment. Raises ArchiveDamaged unless the bytes are equal."""
    first = page[0].position
    manifest = next((manifest for manifest in archive.segments if manifest.first <= first <= manifest.last), None)
    if manifest is None:
        raise ArchiveDamaged(f"the archive at {archive.url} ends before position {first}: nothing was removed")
    segment = await asyncio.to_thread(read, manifest)
    same = [stored for stored in page if stored.position <= manifest.last]
    for stored in same:
        record = segment.record(stored.position - manifest.first)
        if (record.position, record.subject, record.data) != (stored.position, stored.subject, stored.data):
            raise ArchiveDamaged(
                f"position {stored.position} in {archive.url} differs from the log: nothing was removed. Archive the "
                "log again into an empty folder"
            )
    foreign = await asyncio.to_thread(archive.foreign, manifest)
    return [msgspec.structs.replace(stored, past_id="") if stored.position in foreign else stored for stored in same]


async def _store(stream: LongStream, page: list[Stored]) -> None:
    """Append a page to the past stream, atomically. Raises Away, ApiError if that does not end just before the page."""
    headers = [{PAST_ID: stored.id} if stored.id else {} for stored in page]
    for stored, header in zip(page, headers, strict=True):
        if is_hollow(stored.subject, len(stored.data)):
            header[HOLLOW] = str(len(stored.data))
    headers[0][LAST] = str(page[0].position - 1)
    in_one_batch(headers, secrets.token_hex(11))
    door, own = past_entrance(stream.run), pattern(stream.run, "")
    await stream.connection.publish_together(
        [
            (door + stored.subject.removeprefix(own), b"" if HOLLOW in header else stored.data, header)
            for stored, header in zip(page, headers, strict=True)
        ]
    )


async def _change_entrance(stream: LongStream) -> None:
    """Replace the entrance, then wait until the server has judged all messages that came through the old one."""
    connection, config = stream.connection, (await stream.info())["config"]
    await connection.api(f"STREAM.UPDATE.{stream.name}", config | {"subjects": [f"{new_door(stream.run)}>"]})
    retry = connection.retry()
    while True:
        await stream.refresh()
        try:
            # The server judges messages in order: when it has refused this one, it has judged all before.
            await connection.request(f"{stream.entrance}knock", b"", headers={_EXPECTED_STREAM: "another"})
        except Away as error:
            await retry.pause(error)
        except ApiError as error:
            if error.code != ErrorCode.JSStreamNotMatchErr:
                raise
            return
