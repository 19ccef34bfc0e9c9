"""`slime-events archive`: extend a run's archive to the end of its log, verify it, repair it."""

import argparse
import asyncio

from schemas.errors import ArchiveDamaged, BlobDamaged, BlobMissing, RunIsOn
from slime_events.app.launch.run_lock import is_held
from slime_events.core.run.run_folder import RunFolder, find_run
from storage.archive.reader import ArchiveReader
from storage.archive.transfer import archive_log, repair_archive
from storage.archive.writer import ArchiveWriter, blobs_to_archive
from storage.open_log import open_run_log
from storage.payloads import blob_refs


async def run(arguments: argparse.Namespace) -> int:
    """Archive, or only verify. Raises ArchiveDamaged for damage that is not repaired."""
    folder = find_run(arguments.run, arguments.runs_dir)
    url = arguments.url or folder.archive_url()
    if not arguments.verify or arguments.repair:
        await _archive(folder, url, repair=arguments.repair)
    if arguments.verify:
        print(verified(url, folder.log_name()))
    return 0


async def _archive(folder: RunFolder, url: str, *, repair: bool) -> None:
    async with open_run_log(folder.path, folder.log_name()) as log:
        if repair:
            for manifest in await repair_archive(log, url, log.run):
                print(f"segment {manifest.segment}, positions {manifest.first} to {manifest.last}: rebuilt")
        if url == folder.archive_url() and is_held(folder):
            raise RunIsOn(
                f"run {log.run} is running, and its archivist writes {url}: give another URL, or wait until it ends"
            )
        blobs = blobs_to_archive(folder.blob_url(), url, folder.path)
        writer = await asyncio.to_thread(lambda: ArchiveWriter(url, log.run, blobs=blobs))
        sealed = len(writer.segments)
        events = await archive_log(log, writer)
        print(f"archived {events:,} events in {len(writer.segments) - sealed} segments, to position "
              f"{writer.next_position - 1:,}, at {writer.url}")  # fmt: skip


def verified(url: str, run: str) -> str:
    """Read the whole archive with every blob in it, and return a text about the checks. Raises ArchiveDamaged."""
    reader = ArchiveReader(url, run)
    if damaged := reader.damaged():
        which = ", ".join(f"{m.segment} (positions {m.first} to {m.last})" for m in damaged)
        raise ArchiveDamaged(
            f"{reader.url}: {len(damaged)} of {len(reader.segments)} segments are missing or differ from their "
            f"manifests: {which}. Use --repair to rebuild them from the log"
        )
    summary, (blobs, elsewhere) = reader.verify(), check_blobs(reader)
    foreign = f" and {summary.foreign:,} foreign records" if summary.foreign else ""
    held = f"{summary.events:,} events{foreign} in {summary.segments} segments, {summary.bytes:,} bytes"
    state = "closed: the run has finished" if summary.closed else "open: the run may continue"
    return "\n".join([
        f"{reader.url}: {held}, {state}",
        "every segment has the sha256 and the chain in its manifest, every manifest follows the one before, "
        "no position is missing",
        f"{blobs} blobs are in the archive and have their sha256, {elsewhere} are in the run's own blob store",
    ])  # fmt: skip


def check_blobs(reader: ArchiveReader) -> tuple[int, int]:
    """Verify each blob in the archive. Returns the number of blobs in it, and of blobs elsewhere.

    Raises ArchiveDamaged.
    """
    refs = {ref for recorded in reader.read() for ref in blob_refs(recorded.envelope.event)}
    elsewhere = 0
    for ref in sorted(refs, key=lambda ref: ref.sha256):
        try:
            reader.blobs.get(ref)
        except BlobMissing:
            elsewhere += 1
        except BlobDamaged as error:
            raise ArchiveDamaged(f"{error}: use `slime-events archive` with another URL to copy it again") from error
    return len(refs) - elsewhere, elsewhere
