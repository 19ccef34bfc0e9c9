"""`DataFile`: a file of prompts on any store, for random access."""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from schemas.errors import DataError, MissingPart, SlimeEventsError
from schemas.references import expand
from schemas.text import message_text

_SLICED = re.compile(r"(?P<path>.*)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]")


def parse_path(path: str) -> tuple[str, slice | None]:
    """Return the path or URL, and the requested rows; None: all rows. Negative bounds count from the end."""
    match = _SLICED.fullmatch(path)
    if match is None:
        return path, None
    start, stop = (int(bound) if bound.strip("-") else None for bound in (match["start"], match["stop"]))
    return match["path"], slice(start, stop)


BLOCK = 1 << 20
"""Bytes per read."""
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}


class DataFile:
    """A file for random access. A compressed one is unpacked once, into an unnamed temporary file."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._named_errors():
            self._fs, self._path = fsspec.core.url_to_fs(expand(url))
            info = self._fs.info(self._path)
            if info.get("type") == "directory":
                raise DataError(f"{url} is a folder: name a .jsonl or .parquet file")
            if self._is_local and os.path.exists(self._path) and not os.path.isfile(self._path):
                raise DataError(f"{url} is a pipe or a device: write its rows to a file, they are read more than once")
            with self._fs.open(self._path, "rb") as opened:
                opened.read(1)  # fails if it is not readable
        name, ending = os.path.splitext(self._path)
        self._compression = _COMPRESSED.get(ending)
        self.name: str = name if self._compression else self._path
        """Name without the ending of a compression."""

    @property
    def _is_local(self) -> bool:
        return isinstance(self._fs, LocalFileSystem)

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """Open the whole file from its start, unpacked."""
        with self._named_errors():
            if self._compression:
                self._unpacked.seek(0)
                yield self._unpacked
                return
            with self._fs.open(self._path, "rb") as opened:
                yield opened

    def read_ranges(self, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Return several byte ranges, with a single request to a remote store."""
        if self._compression:
            with self.open() as opened:
                return [os.pread(opened.fileno(), size, start) for start, size in zip(starts, sizes, strict=True)]
        return self.read_stored(starts, sizes)

    def stored_size(self) -> int:
        """Return the bytes of the file as it is stored."""
        with self._named_errors():
            return int(self._fs.info(self._path)["size"])

    def read_stored(self, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Return several byte ranges of the file as it is stored, that is, packed if it is compressed."""
        with self._named_errors():
            if self._is_local:
                with open(self._path, "rb") as opened:
                    return [os.pread(opened.fileno(), size, start) for start, size in zip(starts, sizes, strict=True)]
            stops = [start + size for start, size in zip(starts, sizes, strict=True)]
            paths = [self._path] * len(starts)
            ranges: list[bytes] = self._fs.cat_ranges(paths, list(starts), stops, on_error="raise")
            return ranges

    @functools.cached_property
    def _unpacked(self) -> IO[bytes]:
        unpacked = tempfile.TemporaryFile(prefix="prompts-")  # noqa: SIM115  lives as long as this object
        with self._fs.open(self._path, "rb", compression=self._compression) as opened:
            shutil.copyfileobj(opened, unpacked, BLOCK)
        return unpacked

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except SlimeEventsError:
            raise
        except FileNotFoundError:
            raise DataError(f"no file {self.url}") from None
        except ImportError as error:
            raise MissingPart(f"{self.url} needs a package that is not installed: {error}") from error
        except Exception as error:  # each store and each compression has its own errors
            raise DataError(f"{self.url} cannot be read: {type(error).__name__}: {message_text(error)}") from error
