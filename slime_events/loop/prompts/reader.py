"""Rows of a data file by number, without loading the whole file into memory."""

from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from schemas.errors import DataError, TooManyBadLines
from schemas.outside_json import read_json
from slime_events.loop.prompts.data_file import BLOCK, DataFile, parse_path
from slime_events.loop.prompts.json_line import MARK, BadField, fields_of, kind_of, why_not
from slime_events.loop.prompts.parquet_reader import ParquetReader
from slime_events.loop.prompts.prompt import BadReason, BadRow, Problem
from slime_events.loop.prompts.refusals import reasons_of

__all__ = ["DataFile", "JsonlReader", "ParquetReader", "open_reader", "parse_path", "too_many"]

LONGEST_LINE = 64 * BLOCK
"""Most bytes of a line; a longer line is a bad line, and is never in memory as a whole."""
_form = msgspec.json.Decoder(dict[str, msgspec.Raw])
_object = msgspec.json.Decoder(dict[str, Any])


def open_reader(
    file: DataFile, *, stop: int | None, max_bad_lines: int, used: Collection[str] = (), sparse: Collection[str] = ()
) -> "JsonlReader | ParquetReader":
    """Return a reader by the file's ending: .jsonl (also .json, .ndjson; plain, .gz, .zst) or .parquet.

    stop: most rows that are needed, if known. used: fields that a row must have; errors in further fields are ignored.
    sparse: see `ParquetReader`. Raises TooManyBadLines, DataError or MissingPart.
    """
    if file.name.endswith(".parquet"):
        return ParquetReader(file, used, sparse)
    if file.name.endswith((".jsonl", ".ndjson", ".json")):
        return JsonlReader(file, stop, max_bad_lines, used)
    raise DataError(f"{file.url}: unknown file ending; use .jsonl, .jsonl.gz, .jsonl.zst or .parquet")


class JsonlReader:
    """A JSON object per line. A single pass indexes the rows, with 12 bytes per row in memory.

    bad_lines: lines found while indexing that are not rows (slime skips them too). A line that has the form of JSON but
    invalid values is a row, and a problem when it is read, so that row numbers do not depend on the reader. is_list:
    whether the file begins as a list.
    """

    def __init__(self, file: DataFile, stop: int | None, max_bad_lines: int, used: Collection[str] = ()) -> None:
        self._file, self._used = file, frozenset(used)
        check_kind(file)
        starts, sizes, skipped = array("q"), array("I"), array("q")
        self.is_list = False
        bad: list[BadRow] = []
        for number, start, line in lines_of(file):
            if stop is not None and len(starts) >= stop:
                break
            if line.startswith(MARK):  # of the file, or of a file appended to another
                start, line = start + len(MARK), line[len(MARK) :]
            is_blank = not line.strip()
            problem = None if is_blank else bad_line(line)
            if not is_blank and problem is None:
                starts.append(start)
                sizes.append(len(line))
                continue
            skipped.append(number)
            if problem is not None:
                self.is_list |= not bad and not starts and line.lstrip()[:1] == b"["
                bad.append(BadRow(problem.reason, problem.message, file=file.url, line=number + 1))
            if len(bad) > max_bad_lines:
                raise too_many(bad, max_bad_lines)
        self._starts, self._sizes = np.asarray(starts), np.asarray(sizes)
        # Row r is line r + (lines skipped before it). For each skipped line: the row after it.
        self._skipped_before = np.array(skipped, dtype=np.int64) - np.arange(len(skipped))
        self.bad_lines = tuple(bad)

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, rows: Sequence[int]) -> list[dict[str, Any] | Problem]:
        """Return the fields of some rows, in the order of `rows`, or why a row cannot be read."""
        index = np.asarray(rows, dtype=np.int64)
        sizes = self._sizes[index].tolist()
        lines = self._file.read_ranges(self._starts[index].tolist(), sizes)
        return [self._fields(line, size) for line, size in zip(lines, sizes, strict=True)]

    def line(self, row: int) -> int:
        """Return the 1-based line of a row."""
        return row + int(np.searchsorted(self._skipped_before, row, side="right")) + 1

    def _fields(self, line: bytes, size: int) -> dict[str, Any] | Problem:
        try:
            return _object.decode(line)
        except (ValueError, RecursionError):
            return self._fields_of_bad(line, size)

    def _fields_of_bad(self, line: bytes, size: int) -> dict[str, Any] | Problem:
        if len(line) < size or bad_line(line) is not None:
            return Problem(BadReason.NOT_JSON, "the file has changed since it was indexed: this is no row any more")
        read = fields_of(line, self._used)
        return Problem(BadReason.NOT_JSON, str(read)) if isinstance(read, BadField) else read


def too_many(bad: Sequence[BadRow], limit: int) -> TooManyBadLines:
    """Return the error for too many bad lines, with the first few and the last."""
    shown = [str(row) for row in (*bad[:3], bad[-1])]
    head = f"{len(bad)} unusable prompt lines, --max-bad-lines is {limit}: {reasons_of(bad)}"
    return TooManyBadLines(head + "\n  " + "\n  ".join(shown))


def check_kind(file: DataFile) -> None:
    """Raise DataError for a file whose first bytes are not UTF-8 text, so that none of its lines could be read."""
    with file.open() as opened:
        kind = kind_of(opened.read(4))
    if kind is not None:
        raise DataError(f"{file.url} {kind}")


def lines_of(file: DataFile) -> Iterator[tuple[int, int, bytes]]:
    """Yield (0-based number, byte offset, content) of every line, with a block and a line in memory.

    Of a line longer than `LONGEST_LINE`, only enough is read to detect that.
    """
    with file.open() as opened:
        number = start = size = 0
        held: list[bytes] = []
        while block := opened.read(BLOCK):
            *ended, rest = block.split(b"\n")
            if held and ended:
                yield number, start, b"".join((*held, ended[0]))
                number, start = number + 1, start + size + len(ended[0]) + 1
                del ended[0]
                held, size = [], 0
            for line in ended:
                yield number, start, line
                number += 1
                start += len(line) + 1
            size += len(rest)
            if rest and sum(map(len, held)) <= LONGEST_LINE:
                held.append(rest)
        if size:
            yield number, start, b"".join(held)


def bad_line(line: bytes) -> Problem | None:
    """Return why a line is not a JSON object; None if it is one."""
    if len(line) > LONGEST_LINE:
        return Problem(BadReason.TOO_LONG, f"the line has more than {LONGEST_LINE >> 20} MiB")
    try:
        _form.decode(line)
    except (ValueError, RecursionError):
        return _problem_of(line)
    return None


def _problem_of(line: bytes) -> Problem | None:
    try:
        read_json(line, dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return Problem(BadReason.NOT_AN_OBJECT, "not a JSON object")
    except msgspec.DecodeError as error:
        if not isinstance(error.__cause__, RecursionError):
            return Problem(BadReason.NOT_JSON, f"not JSON: {why_not(line, error)}")
    return None  # the depth limit depends on the reader, which reports it
