"""Rows of a data file by number, without ever holding the file in memory."""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from typing import IO, Any

import fsspec
import msgspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem

from schemas.errors import DataError, MissingPart, TooManyBadLines
from schemas.references import expand
from slime_events.loop.prompts.prompt import BadReason, BadRow, Problem

_SLICED = re.compile(r"(?P<path>.*)@\[(?P<start>-?\d*):(?P<stop>-?\d*)\]")


def parse_path(path: str) -> tuple[str, slice | None]:
    """The path or URL, and the rows asked for; None is all of them. Negative bounds count from the end."""
    match = _SLICED.fullmatch(path)
    if match is None:
        return path, None
    start, stop = (int(bound) if bound.strip("-") else None for bound in (match["start"], match["stop"]))
    return match["path"], slice(start, stop)


BLOCK = 1 << 20
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
            with self._fs.open(self._path, "rb") as opened:
                opened.read(1)  # whether it may be read
        name, ending = os.path.splitext(self._path)
        self._compression = _COMPRESSED.get(ending)
        self.name: str = name if self._compression else self._path
        """Without the ending of a compression."""

    @contextlib.contextmanager
    def open(self) -> Iterator[Any]:
        """The whole file from its beginning, unpacked."""
        with self._named_errors():
            if self._compression:
                self._unpacked.seek(0)
                yield self._unpacked
                return
            with self._fs.open(self._path, "rb") as opened:
                yield opened

    def read_ranges(self, starts: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Several byte ranges; one request to a remote store."""
        if self._compression or isinstance(self._fs, LocalFileSystem):
            with self.open() as opened:
                return [os.pread(opened.fileno(), size, start) for start, size in zip(starts, sizes, strict=True)]
        with self._named_errors():
            stops = [start + size for start, size in zip(starts, sizes, strict=True)]
            ranges: list[bytes] = self._fs.cat_ranges([self._path] * len(starts), list(starts), stops)
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
        except FileNotFoundError:
            raise DataError(f"no file {self.url}") from None
        except ImportError as error:
            raise MissingPart(f"{self.url} needs a package that is not installed: {error}") from error
        except (OSError, ValueError) as error:
            raise DataError(f"{self.url} cannot be read: {type(error).__name__}: {error}") from error


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, Any])


def open_reader(file: DataFile, *, stop: int | None, max_bad_lines: int) -> "JsonlReader | ParquetReader":
    """A reader by the file's ending: .jsonl (also .json, .ndjson; plain, .gz, .zst) or .parquet.

    stop: most rows that are needed, if known. Raises TooManyBadLines, DataError or MissingPart.
    """
    if file.name.endswith(".parquet"):
        return ParquetReader(file)
    if file.name.endswith((".jsonl", ".ndjson", ".json")):
        return JsonlReader(file, stop, max_bad_lines)
    raise DataError(f"{file.url}: the ending says nothing; use .jsonl, .jsonl.gz, .jsonl.zst or .parquet")


class JsonlReader:
    """One JSON object per line. One pass indexes the rows, with 12 bytes a row in memory.

    bad_lines: found while indexing, and no rows (slime skips them too).
    """

    def __init__(self, file: DataFile, stop: int | None, max_bad_lines: int) -> None:
        self._file = file
        starts, sizes, skipped = array("q"), array("I"), array("q")
        bad: list[BadRow] = []
        for number, start, line in lines_of(file):
            if stop is not None and len(starts) >= stop:
                break
            problem = bad_line(line) if line.strip() else None
            if line.strip() and problem is None:
                starts.append(start)
                sizes.append(len(line))
                continue
            skipped.append(number)
            if problem is not None:
                bad.append(BadRow(problem.reason, problem.message, file=file.url, line=number + 1))
            if len(bad) > max_bad_lines:
                raise too_many(bad, max_bad_lines)
        self._starts, self._sizes = np.asarray(starts), np.asarray(sizes)
        # Row r is line r + (lines skipped before it). For each skipped line: the row after it.
        self._skipped_before = np.array(skipped, dtype=np.int64) - np.arange(len(skipped))
        self.bad_lines = tuple(bad)

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The fields of some rows, in the order asked for."""
        index = np.asarray(rows, dtype=np.int64)
        lines = self._file.read_ranges(self._starts[index].tolist(), self._sizes[index].tolist())
        try:
            return [_object.decode(line) for line in lines]
        except msgspec.DecodeError as error:
            raise DataError(f"{self._file.url} has changed since it was indexed: {error}") from error

    def line(self, row: int) -> int:
        """The 1-based line of a row in its file (for Parquet its row)."""
        return row + int(np.searchsorted(self._skipped_before, row, side="right")) + 1


class ParquetReader:
    """Reads by row group; the last two groups stay in memory."""

    bad_lines: Sequence[BadRow] = ()

    def __init__(self, file: DataFile) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingPart("Parquet files need pyarrow: pip install pyarrow") from error
        self._opened = contextlib.ExitStack()  # open as long as this reader lives
        try:
            self._parquet = pq.ParquetFile(self._opened.enter_context(file.open()))
        except pa.ArrowException as error:
            raise DataError(f"{file.url} is no Parquet file: {error}") from error
        groups = self._parquet.metadata.num_row_groups
        sizes = [self._parquet.metadata.row_group(group).num_rows for group in range(groups)]
        self._ends = np.cumsum([0, *sizes])[1:]
        self._group = functools.lru_cache(maxsize=2)(self._parquet.read_row_group)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The fields of some rows, in the order asked for."""
        found: dict[int, dict[str, Any]] = {}
        # By group, so that each is unpacked once in any order of the rows.
        for row in sorted(set(rows)):
            group = int(np.searchsorted(self._ends, row, side="right"))
            first = int(self._ends[group - 1]) if group else 0
            found[row] = self._group(group).slice(row - first, 1).to_pylist()[0]
        return [found[row] for row in rows]

    def line(self, row: int) -> int:
        """The 1-based line of a row in its file (for Parquet its row)."""
        return row + 1


def too_many(bad: Sequence[BadRow], limit: int) -> TooManyBadLines:
    """The error for too many bad lines, with the first few and the last."""
    shown = [str(row) for row in (*bad[:3], bad[-1])]
    return TooManyBadLines(f"{len(bad)} unusable prompt lines, --max-bad-lines is {limit}:\n  " + "\n  ".join(shown))


def lines_of(file: DataFile) -> Iterator[tuple[int, int, bytes]]:
    """(0-based number, byte offset, content) of every line; holds one block and one line."""
    with file.open() as opened:
        number, start, rest = 0, 0, b""
        while block := opened.read(BLOCK):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            for line in lines:
                yield number, start, line
                number += 1
                start += len(line) + 1
        if rest:
            yield number, start, rest


def bad_line(line: bytes) -> Problem | None:
    """Why a line is no JSON object; None if it is one."""
    try:
        _fields.decode(line)
    except msgspec.ValidationError:
        return Problem(BadReason.NOT_AN_OBJECT, "not a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Problem(BadReason.NOT_JSON, f"not JSON: {error}")
    return None
