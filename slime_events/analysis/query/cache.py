"""`TableCache`: event tables of archived segments as Parquet files, made when a query first needs them.

<folder>/<digest of the bundle>/<event table>-<fingerprint>.parquet

A bundle is some consecutive segments, named by their sha256, so a stored file always belongs to its segments. You may
delete the cache at any time; the next query then takes as long as the first.
"""

import contextlib
import functools
import gc
import hashlib
import os
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from schemas.codec import decode_whole
from slime_events.analysis.query.event_tables import EventTable
from slime_events.analysis.query.making_beside import making_beside, next_of
from slime_events.analysis.query.row import StoredRow
from slime_events.analysis.query.row_builder import BLOCK, RowBuilder
from slime_events.core.tokens.trajectory import Fetch
from storage.archive.index import cache_folder
from storage.archive.manifest import SegmentManifest
from storage.archive.reader import ArchiveReader

FOLDER = Path("slime-events", "tables")
BUNDLE_BYTES = 64 * 1024 * 1024
"""Size of uncompressed records from which a new bundle begins: many small files are slow to query."""
PART_ROWS, PART_BYTES = 32_768, 32 * 1024 * 1024
"""Rows and bytes from which a part of a file is written."""
LIMIT_BYTES = 8 * 1024**3
"""Limit on the whole cache. Beyond it, the least recently used bundles are deleted."""


def bundles(segments: Sequence[SegmentManifest]) -> Iterator[list[SegmentManifest]]:
    """Group the segments, in order. Later segments change the last bundle only."""
    bundle: list[SegmentManifest] = []
    for segment in segments:
        bundle.append(segment)
        if sum(segment.raw_bytes for segment in bundle) >= BUNDLE_BYTES:
            yield bundle
            bundle = []
    if bundle:
        yield bundle


def digest_of(bundle: list[SegmentManifest]) -> str:
    """Return the 32 hex digits that name a bundle."""
    return hashlib.sha256(" ".join(segment.sha256 for segment in bundle).encode()).hexdigest()[:32]


class TableCache:
    """Parquet files in `folder`, by default a folder of this user. If the folder is not writable, a temporary one is
    used.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._preferred = folder or cache_folder() / FOLDER
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @functools.cached_property
    def folder(self) -> Path:
        try:
            self._preferred.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._preferred).close()
        except OSError:
            self._temporary = tempfile.TemporaryDirectory(prefix="slime-events-tables-")
            return Path(self._temporary.name)
        return self._preferred

    def files(self, reader: ArchiveReader, tables: Sequence[EventTable], fetch: Fetch) -> dict[str, list[Path]]:
        """Return the files of each event table over the whole archive, in order. Missing files are made. Raises the
        errors of `reader`.
        """
        every = list(bundles(reader.segments))
        left = deque(bundle for bundle in every if self._missing(bundle, tables))
        changed = bool(left)
        with making_beside(reader, self.folder, tables, left):
            while bundle := next_of(left):
                self.make(reader, bundle, tables, fetch)
        for bundle in every:
            self.make(reader, bundle, tables, fetch)  # what the other process was to make, if it failed
            os.utime(self.folder / digest_of(bundle))
        files = [self._paths(bundle, tables) for bundle in every]
        if changed:
            self._prune(keep={path.parent for paths in files for path in paths.values()})
        return {table.name: [paths[table] for paths in files] for table in tables}

    def make(
        self, reader: ArchiveReader, bundle: list[SegmentManifest], tables: Sequence[EventTable], fetch: Fetch
    ) -> None:
        """Make the files of a bundle that are missing. Raises the errors of `reader` and `fetch`."""
        if missing := self._missing(bundle, tables):
            _make(reader, bundle, missing, fetch)

    def _paths(self, bundle: list[SegmentManifest], tables: Sequence[EventTable]) -> dict[EventTable, Path]:
        folder = self.folder / digest_of(bundle)
        return {table: folder / f"{table.name}-{table.fingerprint()}.parquet" for table in tables}

    def _missing(self, bundle: list[SegmentManifest], tables: Sequence[EventTable]) -> dict[EventTable, Path]:
        return {table: path for table, path in self._paths(bundle, tables).items() if not _whole(path)}

    def _prune(self, keep: set[Path]) -> None:
        """Delete the least recently used bundles. Other processes may do the same: missing files are ignored."""
        sizes: list[tuple[float, int, Path]] = []
        for folder in self.folder.iterdir():
            with contextlib.suppress(OSError):
                sizes.append((folder.stat().st_mtime, sum(file.stat().st_size for file in folder.iterdir()), folder))
        left = sum(size for _, size, _ in sizes)
        for _, size, folder in sorted(sizes):
            if left <= LIMIT_BYTES:
                return
            if folder not in keep:
                shutil.rmtree(folder, ignore_errors=True)
                left -= size


def _whole(path: Path) -> bool:
    """Return whether a file exists and is complete: its footer is written last."""
    try:
        pq.read_metadata(path)
    except (OSError, pa.ArrowException):
        return False
    return True


class _Types(dict[str, str]):
    """Type of an event by the beginning of its subject; empty if it is not one of `types`."""

    def __init__(self, types: Collection[str]) -> None:
        self._types = types

    def __missing__(self, head: str) -> str:
        event_type = head.split(".", 2)[2]
        self[head] = event_type if event_type in self._types else ""
        return self[head]


class _TableFile:
    """A Parquet file that is written in large parts: many small ones take three times as long to write.

    Without dictionaries: finding equal texts takes longer than compressing them.
    """

    def __init__(self, file: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=False)
        self._batches, self._rows, self._bytes = list[pa.RecordBatch](), 0, 0

    def add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= PART_ROWS or self._bytes >= PART_BYTES:
            self._write()

    def close(self) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=self._rows)
            self._batches, self._rows, self._bytes = [], 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._writer.close()


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage meanwhile: events are freed without it, and searching a million of them takes a third of the
    time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _blocks(reader: ArchiveReader, bundle: list[SegmentManifest], types: Collection[str]) -> Iterator[list[StoredRow]]:
    """Yield the events of some types in blocks. The next segment is read meanwhile."""
    type_of = _Types(types)
    with ThreadPoolExecutor(1, thread_name_prefix="slime-events-segments") as ahead:
        reading = [ahead.submit(reader.records_of, segment) for segment in bundle[:1]]
        for following in [*bundle[1:], None]:
            records = reading.pop().result()
            if following is not None:
                reading.append(ahead.submit(reader.records_of, following))
            while block := list(islice(records, BLOCK)):
                yield [
                    StoredRow(record.position, record.subject, decode_whole(record.data), record.data)
                    for record in block
                    if type_of[record.subject.rpartition(".")[0]]
                ]


def _make(reader: ArchiveReader, bundle: list[SegmentManifest], paths: dict[EventTable, Path], fetch: Fetch) -> None:
    """Write all files of a bundle in one pass over it. A file gets its name when it is complete.

    A second thread compresses and writes.
    """
    with contextlib.ExitStack() as open_files:
        open_files.enter_context(_without_collection())
        temps, writers = {}, {}
        for table, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temp = temps[table.name] = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
            open_files.callback(temp.unlink, missing_ok=True)
            writers[table.name] = open_files.enter_context(_TableFile(temp, table.schema))
        second = open_files.enter_context(ThreadPoolExecutor(1, thread_name_prefix="slime-events-tables"))
        waiting = deque[Future[None]]()

        def write(table: EventTable, batch: pa.RecordBatch) -> None:
            waiting.append(second.submit(writers[table.name].add, batch))
            while len(waiting) > len(paths):  # the batches of two flushes at most
                waiting.popleft().result()

        builder = RowBuilder(list(paths), fetch, write)
        for block in _blocks(reader, bundle, builder.types):
            builder.add(block)
            if builder.full:
                builder.flush()
        builder.flush()
        waiting.extend(second.submit(writer.close) for writer in writers.values())
        for done in waiting:
            done.result()
        for table, path in paths.items():
            temps[table.name].replace(path)
