"""`Answer`: the result of a query, computed when its rows are read. `query_errors`: the error message of a query."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from schemas.errors import BadQuery, MissingPart
from slime_events.analysis.query.event_tables import EVENT_TABLES, LOG
from slime_events.analysis.query.tables import TABLES
from slime_events.core.config.nearest import did_you_mean

if TYPE_CHECKING:
    import pandas


_KIND = re.compile(r"^[A-Z][A-Za-z ]* Error: ")
_TABLE = re.compile(r"Table with name (\S+) does not exist")
_COLUMN = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')
_LINE = re.compile(r"LINE (\d+):")
_AT_GROUP = re.compile(r"\bgroup\s*(,|$|from\b|\n)", re.IGNORECASE)


@contextlib.contextmanager
def query_errors(sql: str = "", *, lines_before: int = 0) -> Iterator[None]:
    """Raise BadQuery for errors of DuckDB. lines_before: number of lines added before the query's first line."""
    try:
        yield
    except duckdb.Error as error:
        raise BadQuery(f"the query failed: {_message(error, sql, lines_before)}") from error


def _message(error: duckdb.Error, sql: str, lines_before: int) -> str:
    message, _, where = str(error).strip().partition("\n\nLINE ")
    message = _KIND.sub("", message).strip()
    if match := _TABLE.search(message):
        names = [*(table.name for table in TABLES), *EVENT_TABLES, *(f"{LOG}.{event}" for event in EVENT_TABLES)]
        message = f"unknown table {match[1]}.{did_you_mean(match[1], names)}"
    elif match := _COLUMN.search(message):
        name = match[1] or match[2]
        here = re.findall(r'"([^"]+)"', message.partition("Candidate bindings:")[2])
        everywhere = (column.name for table in TABLES for column in table.columns)
        columns = [*here, *(column for column in everywhere if column != name)]
        message = f"unknown column {name}.{did_you_mean(name, columns)}"
    elif isinstance(error, duckdb.ParserException) and _AT_GROUP.search(sql):
        message += ". GROUP is an SQL keyword: the id of a group is in the column group_id"
    if where:
        message += "\n" + _LINE.sub(lambda line: f"line {int(line[1]) - lines_before}:", f"LINE {where}").rstrip()
    return message


BATCH_ROWS = 10_000


class Answer:
    """Rows of a query. Reading them may raise BadQuery: errors in values, such as text that is not a number, appear
    only then.

    Its text and its display in a notebook are previews.
    """

    def __init__(self, relation: duckdb.DuckDBPyRelation) -> None:
        self.relation = _with_plain_integers(relation)
        """DuckDB's relation, for further operations: `.filter("reward > 0").order("tokens")`."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.relation.columns)

    @property
    def types(self) -> list[str]:
        """Types of the columns, as DuckDB names them."""
        return [str(kind) for kind in self.relation.types]

    def arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        with query_errors():
            return self.relation.to_arrow_table()

    @contextlib.contextmanager
    def reading(self) -> Iterator[pa.RecordBatchReader]:
        """Read the rows as they are computed, in batches."""
        with query_errors():
            yield self.relation.to_arrow_reader(BATCH_ROWS)

    def pandas(self) -> pandas.DataFrame:
        """Return all rows as a data frame. Raises MissingPart if pandas is not installed."""
        if find_spec("pandas") is None:
            raise MissingPart("pandas is not installed. Run `pip install pandas`, or use .arrow()")
        with query_errors():
            return self.relation.df()

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples."""
        with query_errors():
            return list(self.relation.fetchall())

    def __repr__(self) -> str:
        return str(self.relation)


def _with_plain_integers(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Cast sums of integers to 64 bits: DuckDB gives 128 bits, which Arrow and pandas read as decimals."""
    if "HUGEINT" not in map(str, relation.types):
        return relation
    columns = (
        f'CAST(#{number} AS BIGINT) AS "{name}"' if str(kind) == "HUGEINT" else f'#{number} AS "{name}"'
        for number, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), 1)
    )
    return relation.project(", ".join(columns))
