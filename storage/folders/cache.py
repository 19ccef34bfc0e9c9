"""`HostCache`: copies of remote folders on this host, which its processes share.

    <root>/<name>-<digest of the URL>/     a complete copy
    <root>/.partial-<key>/                 a download in progress, or what a killed one left: never used
    <root>/.locks/<key>                    locked: exclusively by a download, shared by each reader
    <root>/.work/<digest of the URL>/      drafts that this host is about to upload

Each copy is downloaded once per host. The kernel releases a lock however its holder ends. If a new copy does not fit,
the least recently used copies that nobody reads are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from schemas.errors import InvalidValue, NoSpace
from storage.object_store import file_errors, fsync

FOLDER, GB = "SLIME_EVENTS_CACHE", "SLIME_EVENTS_CACHE_GB"
"""Environment variables: the folder of the cache on this host, and its limit in GB (1e9 bytes)."""
_PARTIAL, _LOCKS, _WORK, _REMOVED = ".partial-", ".locks", ".work", ".removed-"
_DRAFT_S = 86_400.0
"""Seconds after which a draft was left by a process that was killed."""


class HostCache:
    """Copies below `root`, of `limit` bytes together at most. By default: half of the disk."""

    def __init__(self, root: str | Path, limit: int | None = None) -> None:
        self.root, self._limit = Path(root).expanduser().absolute(), limit

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] | None = None) -> HostCache:
        """Return the cache that this process's environment names. Raises InvalidValue."""
        environ = os.environ if environ is None else environ
        home = environ.get("XDG_CACHE_HOME") or "~/.cache"
        limit = environ.get(GB)
        try:
            return cls(environ.get(FOLDER) or f"{home}/slime-events", int(float(limit) * 1e9) if limit else None)
        except ValueError as error:
            raise InvalidValue(f"{GB}={limit} is not a number of gigabytes") from error

    def work(self, url: str) -> Path:
        """Return the folder for drafts of what will be uploaded to `url`."""
        return self.root / _WORK / _digest(url)

    @contextlib.contextmanager
    def copy(self, url: str, size: int, fetch: Callable[[Path], None]) -> Iterator[Path]:
        """Yield the copy of a folder, which is not removed while inside.

        fetch: downloads the folder, of `size` bytes, into an empty one, and raises if anything differs from the
        original. Another process that needs the same copy waits for it. Raises NoSpace, and the errors of `fetch`.
        """
        key = _key(url)
        while True:
            with self._locked(key, fcntl.LOCK_SH):
                if (folder := self.root / key).is_dir():
                    with contextlib.suppress(OSError):  # removed by hand meanwhile
                        os.utime(folder)
                    yield folder
                    return
            with self._locked(key, fcntl.LOCK_EX) as lock, file_errors(str(self.root)):
                if not folder.is_dir():
                    os.pwrite(lock, b"%020d" % size, 0)
                    self._fill(key, size, fetch)

    def adopt(self, url: str, draft: Path, size: int) -> bool:
        """Move a folder of this host, which is now at `url`, into the cache; return False if it does not fit."""
        key = _key(url)
        with self._locked(key, fcntl.LOCK_EX), file_errors(str(self.root)):
            if (self.root / key).is_dir():
                return False
            try:
                self._make_room(size, on_disk=True)
            except NoSpace:
                return False
            draft.rename(self.root / key)
        return True

    def find(self, url: str) -> Path | None:
        """Return a copy that exists now. It may be removed meanwhile."""
        return folder if (folder := self.root / _key(url)).is_dir() else None

    def drop(self, url: str) -> None:
        """Remove a copy that turned out to be damaged. A process that reads it keeps its open files."""
        with contextlib.suppress(FileNotFoundError):
            self._discard(self.root / _key(url))

    def _fill(self, key: str, size: int, fetch: Callable[[Path], None]) -> None:
        partial = self.root / f"{_PARTIAL}{key}"
        shutil.rmtree(partial, ignore_errors=True)
        self._make_room(size)
        partial.mkdir()
        try:
            fetch(partial)
            fsync(partial)
            partial.rename(self.root / key)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _make_room(self, size: int, *, on_disk: bool = False) -> None:
        """Remove old copies until `size` more bytes fit. on_disk: they are on this disk already."""
        with self._locked("", fcntl.LOCK_EX):
            self._clear_remains()
            disk = shutil.disk_usage(self.root)
            limit = disk.total // 2 if self._limit is None else self._limit
            copies = {path: _bytes(path) for path in self._copies()}
            used = sum(copies.values()) + self._being_fetched()
            free = disk.free + (size if on_disk else 0)
            for path in sorted(copies, key=_used_at):
                if used + size <= limit and size <= free:
                    return
                if self._remove_unread(path):
                    used, free = used - copies[path], free + copies[path]
            if used + size > limit or size > free:
                raise NoSpace(
                    f"no room for {size:,} bytes in the cache {self.root}: it may have {limit:,} bytes, copies in use "
                    f"have {used:,}, and the disk has {free:,} free: raise {GB}, or name a larger disk with {FOLDER}"
                )

    def _copies(self) -> list[Path]:
        return [path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith(".")]

    def _being_fetched(self) -> int:
        """Return the bytes of downloads by other processes, as far as they will grow."""
        total = 0
        for partial in self.root.glob(f"{_PARTIAL}*"):
            with contextlib.suppress(OSError, ValueError):
                total += int((self.root / _LOCKS / partial.name.removeprefix(_PARTIAL)).read_bytes())
        return total

    def _clear_remains(self) -> None:
        """Remove what killed processes left."""
        for partial in self.root.glob(f"{_PARTIAL}*"):
            with self._try_lock(partial.name.removeprefix(_PARTIAL)) as is_left:
                if is_left:
                    shutil.rmtree(partial, ignore_errors=True)
        for removed in self.root.glob(f"{_REMOVED}*"):
            shutil.rmtree(removed, ignore_errors=True)
        for draft in self.root.glob(f"{_WORK}/*/.v*"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > _DRAFT_S:
                    shutil.rmtree(draft) if draft.is_dir() else draft.unlink()

    def _remove_unread(self, path: Path) -> bool:
        with self._try_lock(path.name) as is_unread:
            if is_unread:
                with contextlib.suppress(FileNotFoundError):
                    self._discard(path)
            return is_unread

    def _discard(self, path: Path) -> None:
        # Renamed first, so that a half-deleted folder is never taken for a copy.
        gone = path.rename(self.root / f"{_REMOVED}{path.name}-{secrets.token_hex(4)}")
        shutil.rmtree(gone, ignore_errors=True)

    @contextlib.contextmanager
    def _locked(self, key: str, kind: int) -> Iterator[int]:
        """Hold the lock of a copy; that of the whole cache has the key ""."""
        with file_errors(str(self.root)):
            file = self._open_lock(key)
            fcntl.flock(file, kind)
        try:
            yield file
        finally:
            os.close(file)

    @contextlib.contextmanager
    def _try_lock(self, key: str) -> Iterator[bool]:
        """Hold the lock of a copy, unless it is read or downloaded now: then yield False."""
        file, is_free = self._open_lock(key), True
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
            yield is_free
        finally:
            os.close(file)

    def _open_lock(self, key: str) -> int:
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.root / _LOCKS).mkdir(exist_ok=True)
        return os.open(self.root / _LOCKS / (key or "room"), os.O_RDWR | os.O_CREAT, 0o600)


def _digest(url: str) -> str:
    return hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]


def _key(url: str) -> str:
    return f"{url.rstrip('/').rpartition('/')[2]}-{_digest(url)}"


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
