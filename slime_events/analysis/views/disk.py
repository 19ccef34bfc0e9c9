"""`Disk`: sizes and kept versions of a run's log, archive, weights and checkpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import UNSET, UnsetType

from schemas.doc import doc
from schemas.errors import ConfigError, StorageError
from slime_events.core.run.run_folder import RunFolder
from storage.archive.reader import ArchiveReader
from storage.folders.places import is_remote
from storage.folders.remote import RemoteFolders

if TYPE_CHECKING:
    from storage.jetstream.log import Extent

_VERSION = re.compile(r"v(\d{6,})(?:-|$)")


class LogSize(msgspec.Struct, frozen=True, kw_only=True):
    """The log. Only a log on a server that answers has fields besides `bytes`."""

    bytes: Annotated[int, doc("size of the stream, or of the server's folder [bytes]")]
    first: Annotated[int | UnsetType, doc("first position")] = UNSET
    last: Annotated[int | UnsetType, doc("last position")] = UNSET
    past_bytes: Annotated[int | UnsetType, doc("size of the stream that describes removed events [bytes]")] = UNSET


class ArchiveSize(msgspec.Struct, frozen=True, kw_only=True):
    """The archive, or why it cannot be read."""

    url: Annotated[str | UnsetType, doc("URL of the archive")] = UNSET
    last: Annotated[int | UnsetType, doc("last archived position; 0 if the archive is empty")] = UNSET
    segments: Annotated[int | UnsetType, doc("number of segments")] = UNSET
    bytes: Annotated[int | UnsetType, doc("size of the segments [bytes]")] = UNSET
    error: Annotated[str | UnsetType, doc("why it cannot be read")] = UNSET


class KeptVersions(msgspec.Struct, frozen=True, kw_only=True):
    """Weights or checkpoints."""

    url: Annotated[str | UnsetType, doc("URL, if they are in an object store")] = UNSET
    error: Annotated[str | UnsetType, doc("why the object store cannot be read")] = UNSET
    versions: Annotated[tuple[int, ...], doc("kept weight versions, ascending")]
    bytes: Annotated[int, doc("size of their files [bytes]")]


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a run on disk, on the log's server, or in an object store."""

    log: Annotated[LogSize, doc("the log")]
    archive: Annotated[ArchiveSize, doc("the archive")]
    weights: Annotated[KeptVersions, doc("published weights")]
    checkpoints: Annotated[KeptVersions, doc("checkpoints")]


def view_disk(folder: RunFolder, extent: Extent | None = None) -> Disk:
    """Measure the parts of a run.

    extent: positions that the log holds. The archive may be in an object store, and the log on another server.
    """
    return Disk(
        log=LogSize(**({"bytes": size_of(folder.nats)} | (extent._asdict() if extent else {}))),
        archive=_archive(folder),
        weights=_kept(folder.weights_url, folder.weights),
        checkpoints=_kept(folder.checkpoints_url, folder.checkpoints),
    )


def _archive(folder: RunFolder) -> ArchiveSize:
    try:
        url = folder.archive_url()
        reader = ArchiveReader(url, folder.log_name())
    except ConfigError as error:
        return ArchiveSize(error=str(error))
    except StorageError as error:
        return ArchiveSize(url=url, error=str(error))
    stored = sum(manifest.bytes for manifest in reader.segments)
    return ArchiveSize(url=reader.url, last=reader.last, segments=len(reader.segments), bytes=stored)


def _kept(place: Callable[[], str], own: Path) -> KeptVersions:
    """Return what is kept. place: returns its path or URL by the settings. own: its place in the run's folder."""
    try:
        url = place()
    except ConfigError:
        url = str(own)
    return _stored(url) if is_remote(url) else _versions(own)


def _stored(url: str) -> KeptVersions:
    """Return the versions in an object store, which is asked once."""
    try:
        folders = RemoteFolders(url, retry_s=0.0)
        names = folders.names()
        total = sum(folders.contents(name).bytes for name in names)
    except (StorageError, ConfigError, FileNotFoundError) as error:
        return KeptVersions(url=url, error=str(error), versions=(), bytes=0)
    versions = {int(match[1]) for name in names if (match := _VERSION.match(name))}
    return KeptVersions(url=url, versions=tuple(sorted(versions)), bytes=total)


def _versions(folder: Path) -> KeptVersions:
    """Return the kept versions of weights or checkpoints, each in `<folder>/v000012...`, and their size."""
    paths = folder.iterdir() if folder.is_dir() else ()
    kept = sorted({int(match[1]) for path in paths if (match := _VERSION.match(path.name))})
    return KeptVersions(versions=tuple(kept), bytes=size_of(folder))


def size_of(folder: Path) -> int:
    """Return the bytes of all files below; a file that disappears meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
