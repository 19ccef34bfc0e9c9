"""`LongStream`: the stream of a run whose beginning may leave it for the archive; it answers as if all were there.

    SLIME_<run>        the events from some position on
    SLIME_<run>+past   all events before, at least: each at its own position, on its own subject, with its id. Of what
                       `is_hollow` no more than that: its bytes are read from the archive

So what has left is known for ever, to fences too. The server judges a fence by its own stream alone. One on a position
that has left, or on none, is expected to find nothing there, and is judged here by the past. In between the past
must not grow. So a run's events come in through a door, `slime.<run>.at.<door>.`, and before anything leaves, it is in
the past and the door is another one, which never was before (storage/jetstream/removal.py): who has judged by an older
past finds nobody behind the old door, and judges again.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from schemas.errors import ArchiveDamaged, LogDamaged
from schemas.subjects import entrance, matches, past_entrance, past_stream_name, stream_name
from storage.jetstream.answer import Answer
from storage.jetstream.connection import Connection
from storage.jetstream.stream import PAGE, NotTheLast, Stored, Stream, stream_config

if TYPE_CHECKING:
    from storage.archive.index import ArchiveIndex

WHOLE_BYTES = 1024
_OF_SAMPLES = {"rollout", "turn", "reward"}
PAST_ID = "Slime-Id"
"""Header of a record in the past: the message id that it had. The server need not look for it among those that come."""
HOLLOW = "Slime-Archived"
"""Header of an event in the past whose bytes are in the archive alone: how many they are."""
ARCHIVE = "slime-archive"
"""Key of the stream's metadata: the URL of the archive, or its path from any folder."""
_FILTERS = 32
"""In one question, about an entity each: it may have an answer for each noun and verb, and the server gives 1024."""


def is_hollow(subject: str, size: int) -> bool:
    """Whether an event's bytes are in the archive alone once it has left: what is about a sample, of which there are
    many, and what is large. What became of runs, steps, versions and groups is at hand for ever.
    """
    return subject.split(".", 3)[2] in _OF_SAMPLES or size > WHOLE_BYTES


def long_config(run: str, archive_url: str, replicas: int) -> dict[str, Any]:
    """How a stream is made that events may leave: a purge up to a position is allowed, a deletion is not."""
    return stream_config(run, replicas) | {
        "subjects": [f"{new_door(run)}>"],
        "subject_transform": _transform(run),
        "deny_purge": False,
        "metadata": {ARCHIVE: archive_url if "://" in archive_url else str(Path(archive_url).absolute())},
    }


def past_config(run: str, replicas: int) -> dict[str, Any]:
    """How the stream is made that knows what has left. Nothing ever leaves that one."""
    door = past_entrance(run)
    return stream_config(run, replicas) | {
        "name": past_stream_name(run),
        "subjects": [f"{door}>"],
        "subject_transform": {"src": f"{door}>", "dest": f"slime.{run}.>"},
    }


def _transform(run: str) -> dict[str, str]:
    """The same for every door, so that what came in through an old one just before is stored rightly."""
    return {"src": f"slime.{run}.at.*.>", "dest": f"slime.{run}.>"}


def is_long(run: str, config: Mapping[str, Any]) -> bool:
    """Whether events may leave a stream that is there."""
    return config.get("subject_transform") == _transform(run)


def new_door(run: str) -> str:
    """An entrance that never was before."""
    return entrance(run, secrets.token_hex(6))


def open_door(config: Mapping[str, Any]) -> str:
    """The entrance of a stream that is there."""
    return str(config["subjects"][0]).removesuffix(">")


class LongStream(Stream):
    """See the module. archive_url: where the archive is, if not where it was when the run began."""

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
        return self.entrance + subject.removeprefix(f"slime.{self.run}.")

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
                continue  # some of it may have left before it was read
            if page:
                return page
            await self._not_there(position, end, retry)

    async def _past_page(self, position: int, subject: str | None, limit: int) -> list[Stored]:
        end = await self.past.end(subject)
        if position <= end:
            return _of_the_past(await self.past.page(position, end, subject, limit=limit))
        if subject is None:
            raise LogDamaged(f"stream {self.past.name} ends at {end}, and {self.name} begins at {self._first}")
        return []

    async def left_from(self, subject: str, start: int) -> int:
        """The first position from `start` on under a filter that is in the past alone; 0 for none."""
        first = await self.first()
        page = await self._past_page(start, subject, 1) if start < first else []
        return page[0].position if page and page[0].position < first else 0

    async def to_expect(self, fences: dict[str, int]) -> dict[str, int]:
        left = {subject: position for subject, position in fences.items() if position < self._first}
        if await self._past_ends(sorted(left)) != left:
            raise NotTheLast
        return fences | dict.fromkeys(left, 0)

    async def _past_ends(self, filters: Sequence[str]) -> dict[str, int]:
        """The last position in the past under each filter, 0 for none."""
        about = [one for one in filters if not one.endswith(("*", ">"))]
        ends = {one: await self.past.end(one) for one in filters if one.endswith(("*", ">"))}
        for begin in range(0, len(about), _FILTERS):
            part = about[begin : begin + _FILTERS]
            found = await self.past.last_of_each(part)
            ends |= {one: max((f.position for f in found if matches(one, f.subject)), default=0) for one in part}
        return ends

    async def whole(self, stored: list[Stored]) -> list[Stored]:
        hollow = [one.position for one in stored if one.is_hollow]
        if not hollow:
            return stored
        async with self._reading:
            datas = await asyncio.to_thread(self._archived, hollow)
        return [msgspec.structs.replace(one, data=datas.get(one.position, one.data)) for one in stored]

    def _archived(self, positions: Sequence[int]) -> dict[int, bytes]:
        # Needed by few of those who open a log.
        from storage.archive.index import ArchiveIndex
        from storage.archive.reader import ArchiveReader

        if self._index is None or positions[-1] > self._index.last:
            self._index = ArchiveIndex(ArchiveReader(self.archive_url, self.run))
        if positions[-1] > self._index.last:
            raise ArchiveDamaged(
                f"position {positions[-1]} of run {self.run} has left its log for the archive at {self.archive_url}, "
                f"which ends at {self._index.last}: restore the archive from a copy"
            )
        return {position: self._index.at(position).data for position in positions}


def _of_the_past(stored: list[Stored]) -> list[Stored]:
    """With the message ids that they had, and marked where they are hollow. By what this stream says alone: its headers
    are ours, whoever wrote the record.
    """
    headers = [Answer(one.head, b"").headers for one in stored]
    return [
        msgspec.structs.replace(one, is_hollow=HOLLOW in given, past_id=given.get(PAST_ID, ""))
        for one, given in zip(stored, headers, strict=True)
    ]
