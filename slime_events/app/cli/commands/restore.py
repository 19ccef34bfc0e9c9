"""`slime-events restore`: restore a run's folder and its log from the archive alone."""

import argparse
import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from schemas.checkpoints import CheckpointSaved
from schemas.errors import InvalidValue, RunIsOn, StorageError, UntrustedText
from schemas.runs import RunStarted
from schemas.subjects import of_type
from schemas.trust import FLAG as TRUST
from schemas.weights import WeightsPublished
from slime_events.app.cli.files import nats_place as command_place
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
from storage.weights.store import WeightStore

MARK = "restoring"
"""Name of a file in the run's folder that exists while the log is being restored."""


async def run(arguments: argparse.Namespace) -> int:
    """Restore, and print what was restored and what is missing.

    The author of an archive chose the addresses in its settings. Only addresses on the command line are used.
    """
    reader = await asyncio.to_thread(ArchiveReader, arguments.archive_url, arguments.run)
    folder = RunFolder(arguments.runs_dir, arguments.run)
    settings = await asyncio.to_thread(_settings_of, reader)
    place = _nats_place(arguments, settings)
    blob_url = _blob_url(arguments, settings) or str(folder.blobs)
    weights_url = _weights_url(arguments, settings)
    with limited_files(settings.run.file_access), holding(folder):
        options = {"replicas": arguments.nats_replicas, "archive_url": settings.run.log_leaves_for}
        async with _target(folder, place, options) as log:
            await _begin(folder, log)
            blobs = BlobStore(blob_url)
            done = await restore_log(reader, log, blobs, _progress)
            missing = await _missing(log, settings, folder, weights_url)
        for part in (folder.logs, folder.weights):
            part.mkdir(parents=True, exist_ok=True)
        if not folder.settings.exists():
            folder.write_settings(to_toml(settings))
        if not arguments.trust_archive:
            addresses = (arguments.archive_url, arguments.nats_url, arguments.blob_url, arguments.weights_url)
            folder.restored.write_text(json.dumps([address for address in addresses if address]))
        (folder.path / MARK).unlink()
    print(f"restored {done.position - done.before:,} events to position {done.position:,}, {done.blobs} blobs, "
          f"in {folder.path}")  # fmt: skip
    for sentence in missing:
        print(f"  {sentence}")
    if named := ", ".join(flag_of(key.partition(".")[2]) for key in _unnamed(arguments, settings)):
        print(f"  its settings name code or addresses that this command does not name ({named}): resume with these "
              f"flags, or with {TRUST} if the archive is your own")  # fmt: skip
    own_dir = "" if arguments.runs_dir == RUNS_DIR else f" --runs-dir {arguments.runs_dir}"
    own_url = f" --nats-url {arguments.nats_url}" if arguments.nats_url not in (None, "", settings.run.nats_url) else ""
    print(f"next: slime-events resume {arguments.run}{own_dir}{own_url}")
    return 0


def _settings_of(reader: ArchiveReader) -> TrainSettings:
    """Return the settings that the archived run was started with. Raises StorageError if there are none."""
    first = next(reader.read(), None)
    if first is None or not isinstance(first.envelope.event, RunStarted):
        raise StorageError(f"{reader.url} holds no run: its first event is not run.started. Check the URL.")
    return settings_from(first.envelope.event.settings)


def _nats_place(arguments: argparse.Namespace, settings: TrainSettings) -> NatsPlace | None:
    recorded = nats_place(settings.run)
    if arguments.nats_url is None and recorded is not None:
        if arguments.trust_archive:
            return recorded
        raise UntrustedText(
            f"the archive names the NATS server {recorded.url} for the run's log, and an archive alone is not trusted: "
            f"give --nats-url {recorded.url} to use it, --nats-url '' for a server in the run's folder, or {TRUST} if "
            "the archive is your own"
        )
    return command_place(arguments)


def _blob_url(arguments: argparse.Namespace, settings: TrainSettings) -> str | None:
    recorded = settings.run.blob_url
    if arguments.blob_url is None and recorded:
        if arguments.trust_archive:
            return recorded
        raise UntrustedText(
            f"the archive names {recorded} for the run's large payloads, and an archive alone is not trusted: "
            f"give --blob-url {recorded} to use it, --blob-url '' for the run's folder, or {TRUST} if the archive is "
            "your own"
        )
    return str(arguments.blob_url or "") or None


def _weights_url(arguments: argparse.Namespace, settings: TrainSettings) -> str | None:
    """Return where the run's weight versions are, if the command may look there. Raises InvalidValue."""
    recorded = settings.run.weights_url
    if arguments.weights_url not in (None, recorded):
        place = f"at {recorded}: give that URL" if recorded else "in its folder: leave the flag out"
        raise InvalidValue(f"--weights-url {arguments.weights_url}: the run has its weight versions {place}")
    return recorded if arguments.trust_archive else arguments.weights_url


def _unnamed(arguments: argparse.Namespace, settings: TrainSettings) -> list[str]:
    """Return the archive's settings that name code or addresses outside the run and are not on the command line."""
    if arguments.trust_archive:
        return []
    named = {arguments.archive_url, arguments.nats_url, arguments.blob_url, arguments.weights_url}
    return [key for key, texts in reaching(settings).items() if not named.issuperset(texts)]


async def _begin(folder: RunFolder, log: EventLog) -> None:
    """Mark the folder as being restored. Raises RunIsOn if it already has a log that no restore began."""
    mark = folder.path / MARK
    if not mark.exists() and (position := await log.end()):
        raise RunIsOn(
            f"run {log.run} already has a log, to position {position:,}, and restore does not overwrite it: remove "
            f"{folder.nats}, or restore to another place with --runs-dir or --nats-url"
        )
    mark.touch()


@contextlib.asynccontextmanager
async def _target(folder: RunFolder, place: NatsPlace | None, options: dict[str, Any]) -> AsyncIterator[JetStreamLog]:
    """Open the log to fill, on the user's NATS server or on one of the run's own. options: for a log to create."""
    async with contextlib.AsyncExitStack() as stack:
        if place is None:
            folder.nats.mkdir(parents=True, exist_ok=True)
            guard(folder.nats, folder.run)
            server = await stack.enter_async_context(await NatsServer.start(folder.nats))
            address = server.address(Access.ROLES)
        else:
            address = place.address()
            record_place(folder.path, place)
        log = await JetStreamLog.open(address, folder.run, **options)
        stack.push_async_callback(log.close)
        yield log


async def _missing(
    log: EventLog, settings: TrainSettings, folder: RunFolder, weights_url: str | None = None
) -> list[str]:
    """Return a sentence for each part that a resumed run makes again or needs first. weights_url: to look there."""
    sentences = []
    published = await log.last(of_type(log.run, "weights.published"))
    in_folder = settings.run.weights_url is None
    if published is not None and in_folder and not any(folder.weights.glob("*/*.safetensors")):
        sentences.append(
            "an archive holds no weight versions: the trainer makes the newest version by training again; on a GPU, "
            "also copy its folder in weights/"
        )
    if published is not None and isinstance(event := published.envelope.event, WeightsPublished) and weights_url:
        store = WeightStore(f"{weights_url.rstrip('/')}/{log.run}")
        if event.version not in await asyncio.to_thread(store.versions):
            sentences.append(
                f"{store.root} lacks version {event.version}, the newest one: the trainer makes it by training again; "
                "on a GPU, also copy it there"
            )
    saved = await log.last(of_type(log.run, "checkpoint.saved"))
    if saved is not None and isinstance(saved.envelope.event, CheckpointSaved):
        url = saved.envelope.event.url
        if "://" not in url and not Path(url).is_dir():
            sentences.append(f"checkpoint {url} is missing: training begins at an older checkpoint or at the base")
    branched = await branched_of(log)
    if branched is not None:
        sentences.append(
            f"the run branched from version {branched.version} of run {branched.run}: that version is made again from "
            f"{branched.where}, which must exist"
        )
    return sentences + [f"fix this before you resume: {problem}" for problem in missing_paths(settings)]


def _progress(position: int, last: int) -> None:
    if sys.stderr.isatty():
        raw_stream(sys.stderr).write(f"\rposition {position:,} of {last:,}" + ("\n" if position == last else ""))
