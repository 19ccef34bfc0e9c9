"""`show RUN`: the paths, kept versions and sizes of a run's log, archive, weights and checkpoints."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from schemas.errors import ConfigError, StorageError
from slime_events.app.cli.render.text import fields
from slime_events.core.run.run_folder import RunFolder
from storage.archive.reader import ArchiveReader
from storage.jetstream.log import Extent

_VERSION = re.compile(r"v(\d{6,})(?:-|$)")


def disk_facts(folder: RunFolder, extent: Extent | None = None) -> dict[str, Any]:
    """Return sizes in bytes and kept versions of log, archive, weights and checkpoints.

    extent: positions that the log holds. The archive may be in an object store, and the log on another server.
    """
    return {
        "log": {"bytes": size_of(folder.nats)} | (extent._asdict() if extent else {}),
        "archive": _archive(folder),
        "weights": _versions(folder.weights),
        "checkpoints": _versions(folder.checkpoints),
    }


def _archive(folder: RunFolder) -> dict[str, Any]:
    try:
        url = folder.archive_url()
        reader = ArchiveReader(url, folder.log_name())
    except ConfigError as error:
        return {"error": str(error)}
    except StorageError as error:
        return {"url": url, "error": str(error)}
    stored = sum(manifest.bytes for manifest in reader.segments)
    return {"url": reader.url, "last": reader.last, "segments": len(reader.segments), "bytes": stored}


def _versions(folder: Path) -> dict[str, Any]:
    """Return the kept versions of weights or checkpoints, each in `<folder>/v000012...`, and their size in bytes."""
    paths = folder.iterdir() if folder.is_dir() else ()
    kept = sorted({int(match[1]) for path in paths if (match := _VERSION.match(path.name))})
    return {"versions": kept, "bytes": size_of(folder)}


def size_of(folder: Path) -> int:
    """Return the bytes of all files below; a file that disappears meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def ranges_text(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, neighbours as a range: `0, 4, 8 to 11`."""
    begins = [n for before, n in pairwise([None, *numbers]) if before is None or n != before + 1]
    ends = [n for n, after in pairwise([*numbers, None]) if n is not None and after != n + 1]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(begins, ends, strict=True))


def files_text(folder: RunFolder, disk: dict[str, Any]) -> str:
    """Return a line per existing part of the run, with its path and content."""
    parts = ("archive", "blobs", "weights", "checkpoints", "traces")
    named = [("log", folder.nats), *((part, getattr(folder, part)) for part in parts)]
    named += [("process logs", folder.logs), ("settings", folder.settings), ("summary", folder.summary)]
    where = {name: str(path) for name, path in named if path.exists()}
    archive = disk["archive"]
    if archive.get("last") or "error" in archive:
        where["archive"] = archive.get("url", str(folder.archive))
    return fields((name, f"{path}{_holds(disk.get(name, {}))}") for name, path in where.items())


def _holds(facts: dict[str, Any]) -> str:
    if "error" in facts:
        return f" (cannot be read: {facts['error']})"
    versions, parts = facts.get("versions"), list[str]()
    if versions:
        parts.append(f"version{'s' if len(versions) > 1 else ''} {ranges_text(versions)}")
    if "first" in facts:
        parts.append(f"positions {facts['first']:,} to {facts['last']:,}")
    if "segments" in facts and facts["last"]:
        parts.append(f"positions 1 to {facts['last']:,} in {facts['segments']:,} segments")
    if facts.get("bytes"):
        parts.append(f"{facts['bytes'] / 1e6:,.1f} MB")
    if facts.get("first", 1) > 1:
        parts.append(
            f"and small parts of the {facts['first'] - 1:,} events before, {facts['past_bytes'] / 1e6:,.1f} MB"
        )
    return f": {', '.join(parts)}" if parts else ""
