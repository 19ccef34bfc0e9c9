"""`remove_archived`: lets the beginning of a log leave its stream for the archive.

    compare with the archive, byte for byte -> copy into the past -> another door -> purge what is before a position

Each step may be repeated, in any number of processes: the past only grows, and what is purged is in it. Why these
steps in this order keep fences and ids: storage/jetstream/long_stream.py.
"""

import asyncio
import functools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from schemas.errors import ArchiveDamaged
from schemas.subjects import past_entrance
from storage.jetstream.append import LAST, in_one_batch
from storage.jetstream.long_stream import HOLLOW, PAST_ID, LongStream, is_hollow, new_door
from storage.jetstream.retry import ApiError, Away
from storage.jetstream.stream import Stored

if TYPE_CHECKING:
    from storage.archive.manifest import SegmentManifest
    from storage.archive.reader import ArchiveReader
    from storage.archive.segment import Segment

    Read = Callable[[SegmentManifest], Segment]

_WRONG_LAST, _WRONG_STREAM = {10071, 10164}, 10060
"""JetStream's error codes."""
_EXPECTED_STREAM = "Nats-Expected-Stream"


async def remove_archived(stream: LongStream, archive: "ArchiveReader", upto: int) -> None:
    """Let every event up to position `upto` leave the stream. Raises ArchiveDamaged, and removes nothing, where the
    archive does not hold exactly those; StoreUnavailable, LogUnavailable.
    """
    if upto < await stream.first():
        return
    await _copy(stream, archive, upto)
    await _change_door(stream)
    await stream.connection.api(f"STREAM.PURGE.{stream.name}", {"seq": upto + 1})
    await stream.refresh()


async def _copy(stream: LongStream, archive: "ArchiveReader", upto: int) -> None:
    """All events up to a position into the past, in order, each once: another archivist may do the same."""
    retry, read = stream.connection.retry(), functools.lru_cache(1)(archive.segment)
    while (position := await stream.past.end() + 1) <= upto:
        page = await _compared(archive, read, await stream.page(position, upto))
        try:
            await _store(stream, [one for one in page if one.position <= upto])
        except Away as error:
            await retry.pause(error)
        except ApiError as error:
            if error.code not in _WRONG_LAST:
                raise
            await retry.pause(error)


async def _compared(archive: "ArchiveReader", read: "Read", page: list[Stored]) -> list[Stored]:
    """Those of a page that are in one segment of the archive, where that is read back and found to be the same."""
    first = page[0].position
    manifest = next((one for one in archive.segments if one.first <= first <= one.last), None)
    if manifest is None:
        raise ArchiveDamaged(f"the archive at {archive.url} ends before position {first}: nothing leaves the log")
    segment = await asyncio.to_thread(read, manifest)
    same = [one for one in page if one.position <= manifest.last]
    for one in same:
        record = segment.record(one.position - manifest.first)
        if (record.position, record.subject, record.data) != (one.position, one.subject, one.data):
            raise ArchiveDamaged(
                f"position {one.position} is another event in {archive.url} than in the log: nothing leaves the log. "
                "Archive it anew into an empty folder"
            )
    foreign = await asyncio.to_thread(archive.foreign, manifest)
    return [msgspec.structs.replace(one, past_id="") if one.position in foreign else one for one in same]


async def _store(stream: LongStream, page: list[Stored]) -> None:
    """One atomic append. Raises Away, and ApiError where the past does not end just before them."""
    headers = [{PAST_ID: one.id} if one.id else {} for one in page]
    for one, header in zip(page, headers, strict=True):
        if is_hollow(one.subject, len(one.data)):
            header[HOLLOW] = str(len(one.data))
    headers[0][LAST] = str(page[0].position - 1)
    in_one_batch(headers, secrets.token_hex(11))
    door, own = past_entrance(stream.run), f"slime.{stream.run}."
    await stream.connection.publish_together(
        [
            (door + one.subject.removeprefix(own), b"" if HOLLOW in header else one.data, header)
            for one, header in zip(page, headers, strict=True)
        ]
    )


async def _change_door(stream: LongStream) -> None:
    """Open another door and close this one; then wait until all that came in through it is judged."""
    connection, config = stream.connection, (await stream.info())["config"]
    await connection.api(f"STREAM.UPDATE.{stream.name}", config | {"subjects": [f"{new_door(stream.run)}>"]})
    retry = connection.retry()
    while True:
        await stream.refresh()
        try:
            # The server judges one message after the other, and this one it refuses: then it has judged those before.
            await connection.request(f"{stream.entrance}knock", b"", headers={_EXPECTED_STREAM: "another"})
        except Away as error:
            await retry.pause(error)
        except ApiError as error:
            if error.code != _WRONG_STREAM:
                raise
            return
