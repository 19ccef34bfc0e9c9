"""`LongStream`: the stream of a run whose oldest events can be removed; it answers as if all were still there.

    SLIME_<run>        the events from some position on
    SLIME_<run>+past   all earlier events, at least: each at its own position, on its own subject, with its id. If an
                       event `is_hollow`, its bytes are in the archive only

So look-ups and fences cover removed events too. The server judges a fence by the events in `SLIME_<run>` alone. A fence
on a removed event, or on none, is sent as a fence on no event, and is also compared with the past stream here. The past
stream must not grow between this comparison and the append. So events enter a run's stream through an entrance,
`slime.<run>.at.<door>.`. Before events are removed, they are copied to the past stream and the entrance is replaced by
a new one (storage/jetstream/removal.py). A writer that compared with an older past stream uses the old entrance, gets
no answer, and compares again.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.errors import ArchiveDamaged, LogDamaged
from schemas.subjects import entrance, every_event, matches, past_entrance, past_stream_name, pattern, stream_name
from storage.jetstream.answer import Answer
from storage.jetstream.connection import Connection
from storage.jetstream.stream import PAGE, NotTheLast, Stored, Stream, stream_config

if TYPE_CHECKING:
    from storage.archive.index import ArchiveIndex

WHOLE_BYTES = 1024
_OF_SAMPLES = {"rollout", "turn", "reward"}
PAST_ID = "Slime-Id"
"""Header of a record in the past stream: its original message id. The server does not check it for repetitions."""
HOLLOW = "Slime-Archived"
"""Header of an event in the past stream whose bytes are in the archive only: their number."""
ARCHIVE = "slime-archive"
"""Key of the stream's metadata: the URL or absolute path of the archive."""
_FILTERS = 32
"""Filters in one request, each for one entity: one may match each event type, and the server answers with 1024."""


def is_hollow(subject: str, size: int) -> bool:
    """Return whether a removed event's bytes are in the archive only: if it is about a sample, or large.

    Other events (of runs, steps, versions, groups) stay available in the past stream.
    """
    return subject.split(".", 3)[2] in _OF_SAMPLES or size > WHOLE_BYTES


def long_config(run: str, archive_url: str, replicas: int) -> dict[str, Any]:
    """Return the configuration of a stream with removable events: a purge up to a position is allowed."""
    return stream_config(run, replicas) | {
        "subjects": [f"{new_door(run)}>"],
        "subject_transform": _transform(run),
        "deny_purge": False,
        "metadata": {ARCHIVE: archive_url if "://" in archive_url else str(Path(archive_url).absolute())},
    }


def past_config(run: str, replicas: int) -> dict[str, Any]:
    """Return the configuration of the past stream, from which nothing is removed."""
    door = past_entrance(run)
    return stream_config(run, replicas) | {
        "name": past_stream_name(run),
        "subjects": [f"{door}>"],
        "subject_transform": {"src": f"{door}>", "dest": every_event(run)},
    }


def _transform(run: str) -> dict[str, str]:
    """Return the subject mapping, equal for every entrance: late messages to an old one are stored correctly."""
    return {"src": pattern(run, "at", "*", ">"), "dest": every_event(run)}


def is_long(run: str, config: Mapping[str, Any]) -> bool:
    """Return whether events can be removed from a stream with this configuration."""
    return config.get("subject_transform") == _transform(run)


def new_door(run: str) -> str:
    """Return a new, unique entrance."""
    return entrance(run, secrets.token_hex(6))


def open_door(config: Mapping[str, Any]) -> str:
    """Return the entrance of an existing stream."""
    return str(config["subjects"][0]).removesuffix(">")


class LongStream(Stream):
    """See the module. archive_url: location of the archive, if it is not where it was when the run began."""

    def __init__(self, connection: Connection, run: str, info: Mapping[str, Any], archive_url: str | None) -> None:
        replicated = int(info["config"]["num_replicas"]) > 1
        super().__init__(connection, stream_name(run), replicated=replicated)
        self.past = Stream(connection, past_stream_name(run), replicated=replicated)
        recorded = info["config"]["metadata"][ARCHIVE]
        is_gone = "://" not in recorded and not Path(recorded).is_dir()
        self.archive_url = archive_url if archive_url and is_gone else recorded
        self._first = 1
        self._index: ArchiveIndex | None = None
        self._reading = asyncio.Lock()
        self._learn(info)

    def _learn(self, info: Mapping[str, Any]) -> None:
        self.entrance = open_door(info["config"])
        self._first = max(1, int(info["state"]["first_seq"]))

    def incoming(self, subject: str) -> str:
        return self.entrance + subject.removeprefix(pattern(self.run, ""))

    async def refresh(self, deadline_s: float | None = None) -> None:
        self._learn(await self.info(deadline_s))

    def has_left(self, position: int) -> bool:
        return 0 < position < self._first

    async def first(self) -> int:
        await self.refresh()
        return self._first

    async def end(self, subject: str | None = None) -> int:
        return await super().end(subject) or await self.past.end(subject)

    async def last(self, subject: str) -> Stored | None:
        live = await super().last(subject)
        past = None if live else await self.past.last(subject)
        return _of_the_past([past])[0] if past else live

    async def last_of_each(self, subjects: Sequence[str]) -> list[Stored]:
        live = await super().last_of_each(subjects)
        left = set(subjects) - {stored.subject for stored in live}
        return [*live, *_of_the_past(await self.past.last_of_each(sorted(left)) if left else [])]

    async def subjects(self, pattern: str) -> list[str]:
        live = await super().subjects(pattern)
        return list(dict.fromkeys([*await self.past.subjects(pattern), *live]))

    async def page(self, position: int, end: int, subject: str | None = None, *, limit: int = PAGE) -> list[Stored]:
        retry = self.connection.retry()
        while True:
            if position < self._first:
                if page := await self._past_page(position, subject, limit):
                    return page
                position = self._first
            page = await self._ask_page(position, subject, limit)
            if position < await self.first():
                continue  # events of the page may have been removed before they were read
            if page:
                return page
            await self._not_there(position, end, retry)

    async def glance(self, position: int, subject: str | None) -> list[Stored]:
        page = await super().glance(position, subject)
        return page if position >= await self.first() else []  # events may have been removed before they were read

    async def _past_page(self, position: int, subject: str | None, limit: int) -> list[Stored]:
        end = await self.past.end(subject)
        if position <= end:
            return _of_the_past(await self.past.page(position, end, subject, limit=limit))
        if subject is None:
            raise LogDamaged(f"stream {self.past.name} ends at {end}, but {self.name} begins at {self._first}")
        return []

    async def left_from(self, subject: str, start: int) -> int:
        """Return the first removed position from `start` on under a filter, or 0."""
        first = await self.first()
        page = await self._past_page(start, subject, 1) if start < first else []
        return page[0].position if page and page[0].position < first else 0

    async def to_expect(self, fences: dict[str, int]) -> dict[str, int]:
        left = {subject: position for subject, position in fences.items() if position < self._first}
        if await self._past_ends(sorted(left)) != left:
            raise NotTheLast
        return fences | dict.fromkeys(left, 0)

    async def _past_ends(self, filters: Sequence[str]) -> dict[str, int]:
        """Return the last position in the past stream under each filter; 0 if there is none."""
        about = [pattern for pattern in filters if not pattern.endswith(("*", ">"))]
        ends = {pattern: await self.past.end(pattern) for pattern in filters if pattern.endswith(("*", ">"))}
        for begin in range(0, len(about), _FILTERS):
            part = about[begin : begin + _FILTERS]
            last = await self.past.last_of_each(part)
            ends |= {
                pattern: max((stored.position for stored in last if matches(pattern, stored.subject)), default=0)
                for pattern in part
            }
        return ends

    async def whole(self, stored: list[Stored]) -> list[Stored]:
        hollow = [message.position for message in stored if message.is_hollow]
        if not hollow:
            return stored
        async with self._reading:
            datas = await asyncio.to_thread(self._archived, hollow)
        return [msgspec.structs.replace(message, data=datas.get(message.position, message.data)) for message in stored]

    def _archived(self, positions: Sequence[int]) -> dict[int, bytes]:
        # Imported here: most processes that open a log do not need it.
        from storage.archive.index import ArchiveIndex
        from storage.archive.reader import ArchiveReader

        if self._index is None or positions[-1] > self._index.last:
            self._index = ArchiveIndex(ArchiveReader(self.archive_url, self.run))
        if positions[-1] > self._index.last:
            raise ArchiveDamaged(
                f"position {positions[-1]} of run {self.run} was moved from its log to the archive at "
                f"{self.archive_url}, which ends at {self._index.last}: restore the archive from a copy"
            )
        return {position: self._index.at(position).data for position in positions}


def _of_the_past(stored: list[Stored]) -> list[Stored]:
    """Return records of the past stream with their original ids, and marked if hollow.

    Both come from headers that only our own code writes in that stream.
    """
    headers = [Answer(message.head, b"").headers for message in stored]
    return [
        msgspec.structs.replace(message, is_hollow=HOLLOW in header, past_id=header.get(PAST_ID, ""))
        for message, header in zip(stored, headers, strict=True)
    ]
