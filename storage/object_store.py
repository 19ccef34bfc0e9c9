"""`ObjectFolder`: named byte objects under one fsspec URL, each written atomically.

It has the operations that blobs and archive need: create once, replace, read, list. A plain path and `file://` use a
temporary file, fsync, and link or rename; `memory://`, `s3://` and others use their own atomic put.
"""

import contextlib
import errno
import hashlib
import inspect
import os
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from schemas.doc import doc
from schemas.errors import InvalidValue, NoSpace, SlimeEventsError, StoreUnavailable
from schemas.references import expand

_FULL = (errno.ENOSPC, errno.EDQUOT)
_AT_ONCE = 512
"""Objects in one request to a remote store."""
_PART = 16 * 1024**2
"""Bytes of a file that a download holds in memory; as many are read ahead."""
_UPLOAD = {"chunksize": _PART, "max_concurrency": 2}
"""Parts of an upload in memory, if the back-end has them as arguments: s3fs takes 500 MB for a file otherwise."""
_MADE_AT = ("LastModified", "last_modified", "mtime", "updated", "created")
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@contextlib.contextmanager
def file_errors(where: str) -> Iterator[None]:
    """Convert OSError to NoSpace or StoreUnavailable, except FileNotFoundError and FileExistsError."""
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpace(f"no space to write {where}: free some space, then continue ({error})") from error
        raise StoreUnavailable(f"{where} cannot be reached or used: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def store_errors(where: str) -> Iterator[None]:
    """Convert errors as `file_errors` does, for any fsspec back-end."""
    try:
        with file_errors(where):
            yield
    except (SlimeEventsError, FileNotFoundError, FileExistsError):
        raise
    except Exception as error:  # each back-end raises errors of its own packages (botocore, aiohttp, gcsfs ...)
        raise StoreUnavailable(f"{where} cannot be reached or used: {type(error).__name__}: {error}") from error


def fsync(path: Path) -> None:
    """Make a local file, or the names in a local folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ObjectState(NamedTuple):
    """Size and state of an object, from a listing."""

    bytes: int
    tag: Annotated[str, doc("Changes with the content, if the store has an ETag or a time for it.")]


class ObjectFolder:
    """Objects by relative name (`ab/cdef`) under `url`. `options` go to the fsspec file system (endpoint, keys).

    Every method may raise StoreUnavailable, the writing ones NoSpace.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        # Imported here: it takes longer than looking up one record, which needs no store.
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        self.url = url.rstrip("/") or "/"
        with store_errors(self.url):
            self._fs, self._root = url_to_fs(expand(self.url), **(options or {}))
        self.local = Path(self._root) if isinstance(self._fs, LocalFileSystem) else None
        self._sizes: dict[str, int] = {}
        accepted = inspect.signature(self._fs.put_file).parameters
        self._in_parts = {name: value for name, value in _UPLOAD.items() if name in accepted}

    def locate(self, name: str) -> str:
        """Return the full URL of an object, for events and messages."""
        return f"{self.url}/{name}"

    def create(self, name: str, data: bytes) -> bool:
        """Write a new object. If it exists, write nothing and return False."""
        with store_errors(self.locate(name)):
            if self.local is not None:
                return _create_file(self.local / _checked(name), data)
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                # Some S3 servers refuse to create an existing object with an error that s3fs turns into EINVAL.
                if error.errno == errno.EINVAL and self.exists(name):
                    return False
                raise
            return True

    def replace(self, name: str, data: bytes) -> None:
        """Write an object, or replace its content atomically."""
        with store_errors(self.locate(name)):
            if self.local is None:
                self._fs.pipe_file(self._path(name), data)
                return
            path = self.local / _checked(name)
            temp = _write_temp(path, data)
            os.replace(temp, path)
            fsync(path.parent)

    def read(self, name: str, limit: int | None = None) -> bytes:
        """Return the whole content. Raises FileNotFoundError if there is no such object.

        limit: most bytes that the caller expects. A larger object is cut to `limit + 1` bytes, which shows its size.
        """
        with store_errors(self.locate(name)):
            if self.local is not None:
                return _read_file(self.local / _checked(name), limit)
            span = {} if limit is None else {"start": 0, "end": limit + 1}
            return bytes(self._fs.cat_file(self._path(name), **span))

    def read_all(self, names: Sequence[str], limit: int) -> Iterator[bytes]:
        """Yield the contents of many small objects in order; a remote store reads many at once.

        Raises StoreUnavailable if an object has more than `limit` bytes.
        """
        for i in range(0, len(names), _AT_ONCE):
            some = names[i : i + _AT_ONCE]
            if large := next((name for name in some if self._sizes.get(name, 0) > limit), None):
                raise StoreUnavailable(f"{self.locate(large)} has more than the allowed {limit:,} bytes")
            if self.local is not None:
                yield from (self.read(name, limit) for name in some)
                continue
            with store_errors(self.locate(some[0])):
                contents = {path.lstrip("/"): data for path, data in self._fs.cat(list(map(self._path, some))).items()}
            yield from (bytes(contents[self._path(name).lstrip("/")]) for name in some)

    def upload(self, name: str, path: Path) -> None:
        """Write a new object from a local file, in parts: a large one is never in memory."""
        with store_errors(self.locate(name)):
            if self.local is not None:
                (self.local / _checked(name)).parent.mkdir(parents=True, exist_ok=True)
            try:
                self._fs.put_file(str(path), self._path(name), **self._in_parts)
            except FileNotFoundError as error:
                if not path.exists():
                    raise
                raise StoreUnavailable(f"{self.locate(name)} cannot be written: there is no such bucket") from error

    def download(self, name: str, path: Path, size: int) -> str:
        """Copy an object of `size` bytes to a new local file, in parts, make it durable, and return its sha256 (hex).

        Raises FileNotFoundError, and StoreUnavailable if the object has another size: an answer was cut short.
        """
        digest, written = hashlib.sha256(), 0
        with store_errors(self.locate(name)), path.open("xb") as file:
            if size:
                with self._fs.open(self._path(name), "rb", block_size=_PART, cache_type="readahead") as source:
                    while part := source.read(_PART):
                        digest.update(part)
                        written += file.write(part)
                        if written > size:
                            break
            file.flush()
            os.fsync(file.fileno())
        if written != size:
            raise StoreUnavailable(f"{self.locate(name)} gave {written:,} bytes or more, not {size:,}")
        return digest.hexdigest()

    def exists(self, name: str) -> bool:
        """Return whether the object exists now, without a cache."""
        with store_errors(self.locate(name)):
            if self.local is not None:
                return (self.local / _checked(name)).is_file()
            self._fs.invalidate_cache()
            return bool(self._fs.isfile(self._path(name)))

    def names(self, folder: str) -> list[str]:
        """Return the names, for `read`, of the objects directly in `folder`, sorted."""
        listed = self._list(self._path(folder), files=True)
        self._sizes = {f"{folder}/{name}": size for name, size in listed.items() if not name.startswith(".")}
        return sorted(self._sizes)

    def by_age(self, folder: str) -> list[str]:
        """Return what `names` returns, the oldest first; of equal age, or in a store without times, by name."""
        path = self._path(folder)
        with store_errors(path):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return []
        times = {str(e["name"]).rsplit("/", 1)[-1]: _made_at(e) for e in entries if e["type"] == "file"}
        return [f"{folder}/{name}" for name in sorted(times, key=lambda name: (times[name], name)) if name[0] != "."]

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the bytes of every object below a folder, by its name within the folder."""
        return {name: state.bytes for name, state in self.states(folder).items()}

    def states(self, folder: str) -> dict[str, ObjectState]:
        """Return the states of every object below a folder, by its name within the folder."""
        path = self._path(folder).rstrip("/")
        with store_errors(path):
            self._fs.invalidate_cache()
            try:
                listed = self._fs.find(path, detail=True)
            except FileNotFoundError:
                return {}
        start = len(path.lstrip("/")) + 1
        return {
            str(name).lstrip("/")[start:]: ObjectState(int(e["size"] or 0), str(e.get("ETag") or _made_at(e)))
            for name, e in listed.items()
        }

    def folders(self) -> list[str]:
        """Return the names of the folders directly in this folder, sorted."""
        return sorted(self._list(self._root, files=False))

    def _list(self, path: str, *, files: bool) -> dict[str, int]:
        """Return the files or folders directly in `path`, with sizes in bytes."""
        with store_errors(path):
            self._fs.invalidate_cache()
            try:
                entries = self._fs.ls(path, detail=True)
            except FileNotFoundError:
                return {}
            selected = (entry for entry in entries if (entry["type"] == "file") is files)
            return {str(entry["name"]).rstrip("/").rsplit("/", 1)[-1]: int(entry["size"] or 0) for entry in selected}

    def remove(self, name: str | None = None) -> None:
        """Remove the folder with all objects, or the object or folder `name` in it. Raises StoreUnavailable."""
        with store_errors(self.url), contextlib.suppress(FileNotFoundError):
            self._fs.invalidate_cache()
            self._fs.rm(self._root if name is None else self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{_checked(name)}"


def _made_at(entry: Mapping[str, Any]) -> float:
    """Return when an object was written [s], by the key of its back-end; 0 if that tells no time."""
    time = next((entry[key] for key in _MADE_AT if key in entry), 0)
    if isinstance(time, datetime):
        return time.timestamp()
    return float(time) if isinstance(time, int | float) else 0.0


def is_object_name(name: str) -> bool:
    """Return whether a name stays in its folder."""
    return "\0" not in name and not any(part in ("", ".", "..") for part in name.split("/"))


def _checked(name: str) -> str:
    """Return the name. Raises InvalidValue if it leads out of its folder: it may come from an archive."""
    if not is_object_name(name):
        raise InvalidValue(f"{name[:200]!r} does not name an object: it leads out of its folder")
    return name


def _read_file(path: Path, limit: int | None) -> bytes:
    if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device would never end
        raise StoreUnavailable(f"{path} is not a file")
    with path.open("rb") as file:
        return file.read() if limit is None else file.read(limit + 1)


def _write_temp(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temp = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        with temp.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # an interrupt too must not leave the file
        temp.unlink(missing_ok=True)
        raise
    return temp


def _create_file(path: Path, data: bytes) -> bool:
    if path.exists():
        return False
    temp = _write_temp(path, data)
    try:
        os.link(temp, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.replace(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    fsync(path.parent)
    return True
