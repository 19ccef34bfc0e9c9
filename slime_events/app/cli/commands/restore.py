"""`slime-events restore`: a run's folder and its log, from the archive alone."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from schemas.checkpoints import CheckpointSaved
from schemas.errors import RunIsOn, StorageError, UntrustedText
from schemas.runs import RunStarted
from schemas.subjects import of_type
from schemas.trust import FLAG as TRUST
from slime_events.app.cli.files import nats_place as told_place
from slime_events.app.launch.run_lock import holding
from slime_events.app.terminal import raw_stream
from slime_events.core.config.paths import missing_paths
from slime_events.core.config.reach import reaching
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import settings_from, to_toml
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder
from slime_events.core.run.run_reader import branched_of
from slime_events.core.run.run_settings import flag_of, nats_place
from storage.archive.reader import ArchiveReader
from storage.archive.transfer import restore_log
from storage.blobs import BlobStore
from storage.file_access import limited_files
from storage.jetstream.address import NatsPlace
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog
from storage.nats.accounts import Access, guard
from storage.nats.server import NatsServer
from storage.open_log import record_place

MARK = "restoring"
"""A file in the run's folder while a restore has not finished its log."""


async def run(arguments: argparse.Namespace) -> int:
    """Restore, and print what is there and what is missing.

    Whoever made the archive chose the addresses in its settings: none is used that the command line does not name.
    """
    reader = await asyncio.to_thread(ArchiveReader, arguments.archive_url, arguments.run)
    folder = RunFolder(arguments.runs_dir, arguments.run)
    settings = await asyncio.to_thread(_settings_of, reader)
    place = _nats_place(arguments, settings)
    blob_url = _blob_url(arguments, settings) or str(folder.blobs)
    with limited_files(settings.run.file_access), holding(folder):
        made = {"replicas": arguments.nats_replicas, "archive_url": settings.run.log_leaves_for}
        async with _target(folder, place, made) as log:
            await _begin(folder, log)
            blobs = BlobStore(blob_url)
            done = await restore_log(reader, log, blobs, _progress)
            missing = await _missing(log, settings, folder)
        for part in (folder.logs, folder.traces, folder.weights):
            part.mkdir(parents=True, exist_ok=True)
        if not folder.settings.exists():
            folder.settings.write_text(to_toml(settings))
        if not arguments.trust_archive:
            addresses = (arguments.archive_url, arguments.nats_url, arguments.blob_url)
            folder.restored.write_text(json.dumps([address for address in addresses if address]))
        (folder.path / MARK).unlink()
    print(f"restored {done.position - done.before:,} events to position {done.position:,}, {done.blobs} blobs, "
          f"in {folder.path}")  # fmt: skip
    for sentence in missing:
        print(f"  {sentence}")
    if named := ", ".join(flag_of(one.partition(".")[2]) for one in _unnamed(arguments, settings)):
        print(f"  its settings name code or addresses that this command does not ({named}): resume with these flags, "
              f"or with {TRUST} where the archive is your own")  # fmt: skip
    own_dir = "" if arguments.runs_dir == RUNS_DIR else f" --runs-dir {arguments.runs_dir}"
    own_url = f" --nats-url {arguments.nats_url}" if arguments.nats_url not in (None, "", settings.run.nats_url) else ""
    print(f"next: slime-events resume {arguments.run}{own_dir}{own_url}")
    return 0


def _settings_of(reader: ArchiveReader) -> TrainSettings:
    """The settings that the archived run was started with. Raises StorageError where it has none."""
    first = next(reader.read(), None)
    if first is None or not isinstance(first.envelope.event, RunStarted):
        raise StorageError(f"{reader.url} holds no run: its first event is not run.started. Is it the right URL?")
    return settings_from(first.envelope.event.settings)


def _nats_place(arguments: argparse.Namespace, settings: TrainSettings) -> NatsPlace | None:
    recorded = nats_place(settings.run)
    if arguments.nats_url is None and recorded is not None:
        if arguments.trust_archive:
            return recorded
        raise UntrustedText(
            f"the archived run had its log on {recorded.url}, which is not connected to because an archive says so: "
            "give --nats-url with it, --nats-url '' for a server in the run's folder, or "
            f"{TRUST} where the archive is your own"
        )
    return told_place(arguments)


def _blob_url(arguments: argparse.Namespace, settings: TrainSettings) -> str | None:
    recorded = settings.run.blob_url
    if arguments.blob_url is None and recorded:
        if arguments.trust_archive:
            return recorded
        raise UntrustedText(
            f"the archived run had its large payloads at {recorded}, which is not opened because an archive says so: "
            f"give --blob-url with it, --blob-url '' for the run's folder, or {TRUST} where the archive is your own"
        )
    return str(arguments.blob_url or "") or None


def _unnamed(arguments: argparse.Namespace, settings: TrainSettings) -> list[str]:
    """Settings of the archive that reach beyond the run, and that neither this command nor the user has named."""
    if arguments.trust_archive:
        return []
    named = {arguments.archive_url, arguments.nats_url, arguments.blob_url}
    return [key for key, texts in reaching(settings).items() if not named.issuperset(texts)]


async def _begin(folder: RunFolder, log: EventLog) -> None:
    """Mark the folder as being restored. Raises RunIsOn where it has a log that is not of a restore."""
    mark = folder.path / MARK
    if not mark.exists() and (position := await log.end()):
        raise RunIsOn(
            f"there is a log of run {log.run} already, to position {position:,}, and nothing is restored over it: "
            f"remove {folder.nats}, or restore elsewhere with --runs-dir or --nats-url"
        )
    mark.touch()


@contextlib.asynccontextmanager
async def _target(folder: RunFolder, place: NatsPlace | None, made: dict[str, Any]) -> AsyncIterator[JetStreamLog]:
    """The log to fill: on the server of the user's own, or on one of the run's. made: how, if it is not there yet."""
    async with contextlib.AsyncExitStack() as stack:
        if place is None:
            folder.nats.mkdir(parents=True, exist_ok=True)
            guard(folder.nats, folder.run)
            server = await stack.enter_async_context(await NatsServer.start(folder.nats))
            address = server.address(Access.ROLES)
        else:
            address = place.address()
            record_place(folder.path, place)
        log = await JetStreamLog.open(address, folder.run, **made)
        stack.push_async_callback(log.close)
        yield log


async def _missing(log: EventLog, settings: TrainSettings, folder: RunFolder) -> list[str]:
    """What a resumed run will make again, or needs first, one sentence each."""
    sentences = []
    published = await log.last(of_type(log.run, "weights.published"))
    if published is not None and not any(folder.weights.glob("*/*.safetensors")):
        sentences.append(
            "weight versions are not in an archive: the trainer makes the newest again, by training again; on a GPU, "
            "copy its folder in weights/ too"
        )
    saved = await log.last(of_type(log.run, "checkpoint.saved"))
    if saved is not None and isinstance(saved.envelope.event, CheckpointSaved):
        url = saved.envelope.event.url
        if "://" not in url and not Path(url).is_dir():
            sentences.append(f"checkpoint {url} is not there: training begins at an older one, or at the base")
    branched = await branched_of(log)
    if branched is not None:
        sentences.append(
            f"it branched from version {branched.version} of run {branched.run}: that is made again from "
            f"{branched.where}, which has to be there"
        )
    return sentences + [f"before it is resumed: {problem}" for problem in missing_paths(settings)]


def _progress(position: int, last: int) -> None:
    if sys.stderr.isatty():
        raw_stream(sys.stderr).write(f"\rposition {position:,} of {last:,}" + ("\n" if position == last else ""))
