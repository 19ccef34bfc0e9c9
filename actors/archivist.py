"""The archivist follows the log, seals segments of it in object storage, and appends `archive.sealed` for each.

`should_seal` decides; `archive_run` reads, seals and appends until the run is finished or the archivist is stopped. All
state is in the archive and the log: after a crash, a new archivist continues.
"""

import asyncio
import contextlib
import enum
import functools
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from schemas.archives import ArchiveSealed
from schemas.doc import doc
from schemas.envelope import enclose
from schemas.errors import Conflict, DeadlineExceeded, LogUnavailable, NoSpace, StoreUnavailable
from schemas.event import Event
from schemas.runs import RunFinished
from schemas.steps import StepCommitted
from schemas.subjects import about
from storage.archive.manifest import SegmentManifest
from storage.archive.writer import SEGMENT_BYTES, ArchiveWriter
from storage.follow import RecordFollower
from storage.log import Append, EventLog, Fence, ForeignRecord, Recorded

logger = logging.getLogger(__name__)

MOST_BYTES = 8 * SEGMENT_BYTES
"""Bytes at which a segment is sealed even within a batch of records: a reader refuses far larger segments."""

ResultT = TypeVar("ResultT")
TrimLog = Callable[[int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class SealPolicy:
    """Limits at which a segment is sealed."""

    max_bytes: Annotated[int, doc("Size at which a segment is sealed, in bytes of uncompressed records.")] = (
        SEGMENT_BYTES
    )
    max_age_s: Annotated[float, doc("Age of the first event at which a segment is sealed, in seconds.")] = 10.0
    look_s: Annotated[float, doc("Longest wait for new records, in seconds.")] = 0.25


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between retries of an unavailable log or store; each pause is twice the last.

    The deadline is long because the log has all events that are not archived, so that an unavailable store is no reason
    to end a run.
    """

    first_s: Annotated[float, doc("First pause, in seconds.")] = 0.2
    most_s: Annotated[float, doc("Longest pause, in seconds.")] = 10.0
    deadline_s: Annotated[float, doc("Total time after which retries end, in seconds.")] = 24 * 3600.0


class ArchiveOutcome(enum.StrEnum):
    """FINISHED: the whole run is archived and the archive closed. STOPPED: all events so far are archived."""

    FINISHED = "finished"
    STOPPED = "stopped"


def should_seal(policy: SealPolicy, pending_bytes: int, has_news: bool, age_s: float) -> bool:
    """Return whether to seal the pending events now.

    has_news: whether any of them is not `archive.sealed`. Without this condition, each segment on an idle log would
    cause the next segment.
    """
    return pending_bytes >= policy.max_bytes or (has_news and age_s >= policy.max_age_s)


async def archive_run(
    log: EventLog,
    writer: ArchiveWriter,
    producer: str,
    *,
    stop: asyncio.Event | None = None,
    policy: SealPolicy | None = None,
    backoff: Backoff | None = None,
    trim_log: TrimLog | None = None,
) -> ArchiveOutcome:
    """Archive `log` until `run.finished` is archived, or until all events before `stop` are archived.

    The last segment, which contains `run.finished`, has no `archive.sealed`: no event follows a run's last. For a
    resumed run, start this after `run.resumed` is appended. trim_log: called after each segment with the last archived
    position. Raises DeadlineExceeded if the log or the store is unavailable for longer than `backoff`, Conflict if
    another archivist writes the same archive, ArchiveDamaged.
    """
    archivist = _Archivist(log, writer, producer, policy or SealPolicy(), backoff or Backoff(), trim_log)
    return await archivist.run(stop or asyncio.Event())


def _event(record: Recorded | ForeignRecord, kind: type[Event]) -> bool:
    return isinstance(record, Recorded) and isinstance(record.envelope.event, kind)


class _Archivist:
    def __init__(
        self,
        log: EventLog,
        writer: ArchiveWriter,
        producer: str,
        policy: SealPolicy,
        backoff: Backoff,
        trim_log: TrimLog | None,
    ) -> None:
        self._log, self._writer, self._producer = log, writer, producer
        self._policy, self._backoff, self._trim_log = policy, backoff, trim_log
        self._run_events = about(log.run, "run", "run")
        self._follower: RecordFollower | None = None
        self._following = contextlib.AsyncExitStack()
        self._since = 0.0  # monotonic seconds of the first pending event; 0 if only archive.sealed is pending
        self._in_step = False  # whether the newest record is a step whose weights are the next record

    async def run(self, stop: asyncio.Event) -> ArchiveOutcome:
        if self._writer.segments:
            # A predecessor may have died between sealing its last segment and its archive.sealed.
            await self._announce(self._writer.segments[-1])
        if await self._is_over(self._writer.next_position - 1):
            return await self._close()
        try:
            return await self._follow(stop)
        finally:
            await self._stop_following()

    async def _follow(self, stop: asyncio.Event) -> ArchiveOutcome:
        target: int | None = None
        while True:
            if target is None and stop.is_set():
                target = await self._retry("the log", self._log.end)
            for record in await self._retry("the log", self._next):
                await self._take(record)
                if self._writer.pending_bytes >= MOST_BYTES and not self._in_step:
                    await self._seal()
                if _event(record, RunFinished) and await self._is_over(record.position):
                    return await self._close()
            if self._is_due():
                await self._seal()
            if target is not None and self._writer.next_position > target:
                await self._seal()
                return ArchiveOutcome.STOPPED

    async def _next(self) -> list[Recorded | ForeignRecord]:
        """Return the next records, or an empty list after a short wait. After a failure, the position is kept."""
        try:
            if self._follower is None:
                begin, look_s = self._writer.next_position, self._policy.look_s
                follower = RecordFollower(self._log, begin, read_ahead=1000, every_s=look_s)
                self._follower = await self._following.enter_async_context(follower)
            wait_s = min(self._policy.look_s, max(0.01, self._policy.max_age_s - self._age_s()))
            return await self._follower.next(wait_s)
        except LogUnavailable:
            await self._stop_following()
            raise

    async def _stop_following(self) -> None:
        self._follower = None
        await self._following.aclose()

    async def _take(self, record: Recorded | ForeignRecord) -> None:
        self._writer.add(record)
        self._in_step = _event(record, StepCommitted)
        if not _event(record, ArchiveSealed):
            self._since = self._since or time.monotonic()  # the wall clock may jump
        if self._is_due() and not _event(record, RunFinished):
            await self._seal()

    def _age_s(self) -> float:
        return time.monotonic() - self._since if self._since else 0.0

    def _is_due(self) -> bool:
        # A step and its weights are one append: a run restored from a step without weights would wait for them.
        due = should_seal(self._policy, self._writer.pending_bytes, self._since > 0, self._age_s())
        return due and not self._in_step

    async def _is_over(self, position: int) -> bool:
        """Return whether the run ended at or before `position` and was not resumed after that."""
        last = await self._retry("the log", lambda: self._log.last(self._run_events))
        return last is not None and isinstance(last.envelope.event, RunFinished) and last.position <= position

    async def _seal(self) -> None:
        manifest = await self._retry("the archive's store", lambda: asyncio.to_thread(self._writer.seal))
        self._since = 0.0
        if manifest is not None:
            logger.info("sealed segment %d: positions %d to %d", manifest.segment, manifest.first, manifest.last)
            await self._announce(manifest)
            if self._trim_log is not None:
                await self._retry("the log or the archive's store", functools.partial(self._trim_log, manifest.last))

    async def _close(self) -> ArchiveOutcome:
        await self._retry("the archive's store", lambda: asyncio.to_thread(self._writer.close))
        logger.info("archive closed at position %d: %s", self._writer.next_position - 1, self._writer.url)
        return ArchiveOutcome.FINISHED

    async def _announce(self, manifest: SegmentManifest) -> None:
        event = ArchiveSealed(
            segment=manifest.segment,
            first=manifest.first,
            last=manifest.last,
            sha256=manifest.sha256,
            bytes=manifest.bytes,
            url=self._writer.locate(manifest),
        )
        envelope = enclose(self._log.run, event, at=time.time_ns(), producer=self._producer)
        while True:
            last = await self._retry("the log", lambda: self._log.last(self._run_events))
            if last is not None and isinstance(last.envelope.event, RunFinished):
                return
            # The fence is on the run's own events: if run.finished was appended meanwhile, the log refuses this append.
            append = Append(envelope, Fence(self._run_events, last.position if last else 0))
            with contextlib.suppress(Conflict):
                await self._retry("the log", functools.partial(self._log.append, [append]))
                return

    async def _retry(self, what: str, call: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await retried(what, call, self._backoff)


async def retried(what: str, call: Callable[[], Awaitable[ResultT]], backoff: Backoff) -> ResultT:
    """Call `call` until the log or store is available, and return its result. Raises DeadlineExceeded."""
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), backoff.first_s
    while True:
        try:
            result = await call()
        except (LogUnavailable, StoreUnavailable, NoSpace) as error:
            waited = loop.time() - began
            if waited + pause > backoff.deadline_s:
                raise DeadlineExceeded(f"the archivist waited {waited:.0f} s for {what}: {error}") from error
            logger.warning("%s is unavailable for %.1f s, trying again in %.1f s: %s", what, waited, pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, backoff.most_s)
        else:
            if pause > backoff.first_s:
                logger.warning("%s is back after %.1f s", what, loop.time() - began)
            return result
