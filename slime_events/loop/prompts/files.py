"""Data files on any fsspec URL: opening, reading ranges, and saying which file it was."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fsspec
import msgspec

from schemas.errors import DataError, MissingPart

HEAD_BYTES = 65_536
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}


class FileIdentity(msgspec.Struct, frozen=True):
    """Which file, in which state: a run that is resumed on another one must say so.

    version: the store's etag, or the file system's time of last change. head: sha256 of the first 64 KiB.
    """

    url: str
    size: int
    version: str
    head: str

    @property
    def digest(self) -> str:
        """sha256 (hex) over all of it."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


class DataFile:
    """A file for reading at any place. A compressed one is unpacked once, into a temporary file that has no name."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._named_errors():
            self._fs, self._path = fsspec.core.url_to_fs(url)
            info = self._fs.info(self._path)
            if info.get("type") == "directory":
                raise DataError(f"{url} is a folder: name a .jsonl or .parquet file")
            with self._fs.open(self._path, "rb") as opened:
                head = hashlib.sha256(opened.read(HEAD_BYTES)).hexdigest()
        version = next((str(info[key]) for key in ("ETag", "etag", "mtime", "LastModified") if info.get(key)), "")
        self.identity = FileIdentity(url, int(info.get("size") or 0), version, head)
        self._unpacked: IO[bytes] | None = None

    @property
    def name(self) -> str:
        """The file's name without the ending of a compression."""
        path = str(self._path)
        return next((path.removesuffix(end) for end in _COMPRESSED if path.endswith(end)), path)

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """The whole file from its beginning, unpacked."""
        with self._named_errors():
            if (unpacked := self._unpack()) is not None:
                unpacked.seek(0)
                yield unpacked
                return
            with self._fs.open(self._path, "rb") as opened:
                yield opened

    def read_ranges(self, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Several byte ranges; a remote store is asked for all of them at once."""
        with self._named_errors():
            if (unpacked := self._unpack()) is not None:
                return [_read_at(unpacked, start, size) for start, size in zip(starts, sizes, strict=True)]
            if "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)):
                with open(self._path, "rb") as opened:
                    return [_read_at(opened, start, size) for start, size in zip(starts, sizes, strict=True)]
            stops = [start + size for start, size in zip(starts, sizes, strict=True)]
            ranges: list[bytes] = self._fs.cat_ranges([self._path] * len(starts), list(starts), stops)
            return ranges

    def _unpack(self) -> IO[bytes] | None:
        method = next((method for end, method in _COMPRESSED.items() if self._path.endswith(end)), None)
        if method is None:
            return None
        if self._unpacked is None:
            unpacked = tempfile.TemporaryFile(prefix="prompts-")  # noqa: SIM115  lives as long as this object
            with self._fs.open(self._path, "rb", compression=method) as opened:
                shutil.copyfileobj(opened, unpacked, 1 << 20)
            self._unpacked = unpacked
        return self._unpacked

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except FileNotFoundError:
            raise DataError(f"no file {self.url}") from None
        except ImportError as error:
            raise MissingPart(f"{self.url} needs a package that is not installed: {error}") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{self.url} cannot be read: {type(error).__name__}: {error}") from error


def _read_at(opened: IO[bytes], start: int, size: int) -> bytes:
    opened.seek(start)
    return opened.read(size)
