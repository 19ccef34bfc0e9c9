"""`OpenedRun`: a run opened for reading, whether it is running, finished, or only an archive in object storage.

name, or path of a run's folder   its log, on its running server or on a server started to read it
URL of an archived run            `<archive URL>/<run>`, such as s3://bucket/archive/demo
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from schemas.arrays import unpack
from schemas.doc import doc
from schemas.errors import RunNotFound
from schemas.event import Event, type_of
from schemas.runs import Branched, RunResumed, RunStarted
from schemas.subjects import of_type
from schemas.trust import FLAG, doubting, is_doubted
from slime_events.core.config.reach import reaching_texts
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder, find_run
from slime_events.core.run.run_settings import settings_in_force
from slime_events.core.tokens.trajectory import Fetch
from storage.archive.manifest import MANIFESTS
from storage.blobs import BlobStore
from storage.log import Readable
from storage.open_log import open_run_log
from storage.payloads import fetch

if TYPE_CHECKING:
    from storage.archive.reader import ArchiveReader


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run opened for reading."""

    log: Readable
    settings: Annotated[TrainSettings, doc("settings in force at the end of the log")]
    fetch: Annotated[Fetch, doc("returns an array's numbers, from the event or the blob store")]
    folder: Annotated[RunFolder | None, doc("None for an archive")]
    where: Annotated[str, doc("argument that opens the run again from any working directory")]

    @property
    def run(self) -> str:
        """The name that the run was started with."""
        return self.log.run


@contextlib.asynccontextmanager
async def open_run(where: str, runs_dir: str | Path = RUNS_DIR) -> AsyncIterator[OpenedRun]:
    """Open a run by name, folder or archive URL. Raises RunNotFound, StorageError, ConfigError.

    While it is open, addresses and code that only an archive names are not trusted (schemas/trust.py), not even in a
    restored folder.
    """
    if is_doubted(where):
        raise RunNotFound(
            f"{where}: only an archive names this run, so it is not opened: give {FLAG} if the archive is your own"
        )
    if is_archive(where):
        from storage.archive.log import ArchivedLog  # not needed to look up a record of a live run

        reader = await asyncio.to_thread(open_archive, where)
        log = ArchivedLog(reader, reader.run)
        events = await _run_events(log)
        settings, beside = settings_in_force(events), reader.url.rpartition("/")[0]
        with doubting(_outside(settings, events, beside), but=(where, reader.url, beside)):
            yield OpenedRun(log, settings, functools.partial(fetch, blobs=reader.blobs), None, reader.url)
        return
    folder = find_run(where, runs_dir)
    async with open_run_log(folder.path, folder.log_name()) as live:
        events = await _run_events(live)
        settings, trusted = settings_in_force(events), folder.trusted()
        texts = () if trusted is None else _outside(settings, events, str(folder.path.parent))
        with doubting(texts, but=trusted or ()):
            yield OpenedRun(
                live, settings, _fetch(folder.address(settings.run.blob_url, folder.blobs)), folder, str(folder.path)
            )


async def branched_of(log: Readable) -> Branched | None:
    """Return the run and version that a run continues; None if it begins with a base checkpoint. Raises RunNotFound."""
    return next(event.branched for event in await _run_events(log) if isinstance(event, RunStarted))


@contextlib.asynccontextmanager
async def open_parent(branched: Branched) -> AsyncIterator[OpenedRun]:
    """Open the run that a run continues or follows. Raises RunNotFound if it is gone, StorageError, ConfigError."""
    async with contextlib.AsyncExitStack() as stack:
        try:
            parent = await stack.enter_async_context(open_run(branched.where))
        except RunNotFound as error:
            raise RunNotFound(f"the run continues {branched.run}, which was at {branched.where}: {error}") from error
        yield parent


def is_archive(where: str) -> bool:
    """Return whether this is the URL or path of an archived run."""
    return "://" in where or ("/" in where and Path(where, MANIFESTS).is_dir())


def open_archive(where: str) -> "ArchiveReader":
    """Open the segments sealed so far. Raises RunNotFound if there are none, ArchiveDamaged, StorageError."""
    from storage.archive.reader import ArchiveReader

    url, _, run = where.rstrip("/").rpartition("/")
    reader = ArchiveReader(url, run)
    if not reader.last:
        raise RunNotFound(f"{reader.url} has no archived run: give <the --archive-url of the run>/<name of the run>")
    return reader


async def _run_events(log: Readable) -> list[Event]:
    """Return run.started and run.resumed events. Subjects are whole: with a wildcard, a server scans a long log."""
    subjects = [of_type(log.run, type_of(cls), "run") for cls in (RunStarted, RunResumed)]
    events = [recorded.envelope.event for subject in subjects async for recorded in log.read(1, subject)]
    if not events or not isinstance(events[0], RunStarted):
        raise RunNotFound(f"the log of run {log.run} has no run.started: it is empty, or it is not the log of a run")
    return events


def _outside(settings: TrainSettings, events: list[Event], beside: str) -> set[str]:
    """Return the addresses and code outside of an archive that it names. A run beside the archive is not outside."""
    parents = (event.branched.where for event in events if isinstance(event, RunStarted) and event.branched)
    return reaching_texts(settings) | {
        where for where in parents if "://" in where and where.rpartition("/")[0] != beside
    }


def _fetch(blob_url: str) -> Fetch:
    """Return a function that opens the blob store at the first array that is in it: few arrays are."""
    blobs = functools.cache(lambda: BlobStore(blob_url))
    return lambda array: unpack(array) if array.blob is None else fetch(array, blobs())
