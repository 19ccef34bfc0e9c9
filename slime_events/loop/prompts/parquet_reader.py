"""`ParquetReader`: rows of a Parquet file by number."""

import contextlib
import functools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from schemas.errors import DataError, MissingPart
from schemas.text import message_text
from slime_events.loop.prompts.data_file import DataFile
from slime_events.loop.prompts.prompt import BadReason, BadRow, Problem


class ParquetReader:
    """Reads by row group, and keeps the last two groups in memory.

    used: columns that a row must have. sparse: columns in which null fields are removed: in a list of structs, each
    struct has all fields of all structs, with null, and a chat template checks whether a field exists. The content of a
    message stays, because null has a meaning there.
    """

    bad_lines: Sequence[BadRow] = ()

    def __init__(self, file: DataFile, used: Collection[str] = (), sparse: Collection[str] = ()) -> None:
        try:
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingPart("Parquet files need pyarrow: pip install pyarrow") from error
        self._used, self._sparse = frozenset(used), frozenset(sparse)
        self._opened = contextlib.ExitStack()  # open as long as this reader lives
        try:
            self._parquet = pq.ParquetFile(self._opened.enter_context(file.open()))
            groups = self._parquet.metadata.num_row_groups
            sizes = [self._parquet.metadata.row_group(group).num_rows for group in range(groups)]
        except (DataError, MissingPart):
            raise
        except Exception as error:  # errors of the file's store, and of damaged parts
            raise DataError(f"{file.url} is not a Parquet file: {message_text(error)}") from error
        self._ends = np.cumsum([0, *sizes])[1:]
        self._group = functools.lru_cache(maxsize=2)(self._read_group)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, rows: Sequence[int]) -> list[dict[str, Any] | Problem]:
        """Return the fields of some rows, in the order of `rows`, or why a row cannot be read."""
        by_row: dict[int, dict[str, Any] | Problem] = {}
        # In ascending order, so that each group is unpacked once.
        for row in sorted(set(rows)):
            group = int(np.searchsorted(self._ends, row, side="right"))
            first = int(self._ends[group - 1]) if group else 0
            table = self._group(group)
            by_row[row] = table if isinstance(table, Problem) else self._fields(table.slice(row - first, 1))
        return [by_row[row] for row in rows]

    def line(self, row: int) -> int:
        """Return the 1-based row."""
        return row + 1

    def _read_group(self, group: int) -> Any:
        try:
            return self._parquet.read_row_group(group)
        except Exception as error:  # a damaged page may raise any error; only its group is lost
            return Problem(BadReason.NOT_JSON, f"row group {group} cannot be read: {message_text(error)}")

    def _fields(self, row: Any) -> dict[str, Any] | Problem:
        """Return a row of a table. A column that Python has no value for is an error only if it is used."""
        fields: dict[str, Any] = {}
        for name, column in zip(row.column_names, row.columns, strict=True):
            try:
                (value,) = column.to_pylist()
            except Exception as error:  # such as a text that is not UTF-8, or a date beyond Python's
                if name in self._used:
                    return Problem(BadReason.WRONG_TYPE, f"{name!r} cannot be read: {message_text(error)}")
                continue
            fields[name] = without_nulls(value) if name in self._sparse else value
        return fields


def without_nulls(value: Any, depth: int = 0) -> Any:
    """Return a value of structs and lists without the null fields of structs, except for a message's content."""
    if isinstance(value, list):
        return [without_nulls(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without_nulls(item, depth + 1)
        for name, item in value.items()
        if item is not None or (depth == 1 and name == "content")
    }
