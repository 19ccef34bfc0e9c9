"""`show RUN`: the paths, kept versions and sizes of a run's log, archive, weights and checkpoints."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec import UNSET

from slime_events.analysis.views.disk import ArchiveSize, Disk, KeptVersions, LogSize
from slime_events.app.cli.render.text import fields
from slime_events.core.run.run_folder import RunFolder


def ranges_text(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, neighbours as a range: `0, 4, 8 to 11`."""
    begins = [n for before, n in pairwise([None, *numbers]) if before is None or n != before + 1]
    ends = [n for n, after in pairwise([*numbers, None]) if n is not None and after != n + 1]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(begins, ends, strict=True))


def files_text(folder: RunFolder, disk: Disk) -> str:
    """Return a line per existing part of the run, with its path and content."""
    parts = ("archive", "blobs", "weights", "checkpoints")
    named = [("log", folder.nats), *((part, getattr(folder, part)) for part in parts)]
    named += [("process logs", folder.logs), ("settings", folder.settings), ("summary", folder.summary)]
    where = {name: str(path) for name, path in named if path.exists()}
    archive = disk.archive
    if archive.last or archive.error is not UNSET:
        where["archive"] = str(folder.archive) if archive.url is UNSET else archive.url
    for name, kept in (("weights", disk.weights), ("checkpoints", disk.checkpoints)):
        if kept.url is not UNSET:
            where[name] = kept.url
    holds = {
        "log": _log_text(disk.log),
        "archive": _archive_text(archive),
        "weights": _versions_text(disk.weights),
        "checkpoints": _versions_text(disk.checkpoints),
    }
    return fields((name, path + holds.get(name, "")) for name, path in where.items())


def _log_text(log: LogSize) -> str:
    parts = [] if log.first is UNSET else [f"positions {log.first:,} to {log.last:,}"]
    parts += _size_text(log.bytes)
    if log.first is not UNSET and log.past_bytes is not UNSET and log.first > 1:
        parts.append(f"and small parts of the {log.first - 1:,} events before, {log.past_bytes / 1e6:,.1f} MB")
    return _joined(parts)


def _archive_text(archive: ArchiveSize) -> str:
    if archive.error is not UNSET:
        return f" (cannot be read: {archive.error})"
    parts = [f"positions 1 to {archive.last:,} in {archive.segments:,} segments"] if archive.last else []
    return _joined([*parts, *_size_text(archive.bytes or 0)])


def _versions_text(kept: KeptVersions) -> str:
    if kept.error is not UNSET:
        return f" (cannot be read: {kept.error})"
    versions = kept.versions
    parts = [f"version{'s' if len(versions) > 1 else ''} {ranges_text(versions)}"] if versions else []
    return _joined([*parts, *_size_text(kept.bytes)])


def _size_text(size: int) -> list[str]:
    return [f"{size / 1e6:,.1f} MB"] if size else []


def _joined(parts: Sequence[str]) -> str:
    return f": {', '.join(parts)}" if parts else ""
