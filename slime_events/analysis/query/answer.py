"""`Answer`: what a query gives, computed when its rows are taken; `query_errors`: what is wrong with one."""

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
    """BadQuery for what DuckDB raises. lines_before: that were put before the query, whose first line is 1."""
    try:
        yield
    except duckdb.Error as error:
        raise BadQuery(f"the query cannot be answered: {_message(error, sql, lines_before)}") from error


def _message(error: duckdb.Error, sql: str, lines_before: int) -> str:
    message, _, where = str(error).strip().partition("\n\nLINE ")
    message = _KIND.sub("", message).strip()
    if match := _TABLE.search(message):
        names = [*(table.name for table in TABLES), *EVENT_TABLES, *(f"{LOG}.{event}" for event in EVENT_TABLES)]
        message = f"there is no table {match[1]}.{did_you_mean(match[1], names)}"
    elif match := _COLUMN.search(message):
        name = match[1] or match[2]
        here = re.findall(r'"([^"]+)"', message.partition("Candidate bindings:")[2])
        everywhere = (column.name for table in TABLES for column in table.columns)
        columns = [*here, *(column for column in everywhere if column != name)]
        message = f"there is no column {name} here.{did_you_mean(name, columns)}"
    elif isinstance(error, duckdb.ParserException) and _AT_GROUP.search(sql):
        message += ". GROUP is a word of SQL: the id of a group is the column group_id"
    if where:
        message += "\n" + _LINE.sub(lambda line: f"line {int(line[1]) - lines_before}:", f"LINE {where}").rstrip()
    return message


BATCH_ROWS = 10_000


class Answer:
    """Rows of a query. Taking them may raise BadQuery: what is wrong with values, such as a text that is no number,
    shows only there.

    Its text, and a notebook's picture of it, is a preview.
    """

    def __init__(self, relation: duckdb.DuckDBPyRelation) -> None:
        self.relation = _with_plain_integers(relation)
        """DuckDB's own, to go on with: `.filter("reward > 0").order("tokens")`."""

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return list(self.relation.columns)

    @property
    def types(self) -> list[str]:
        """Their types, as DuckDB names them."""
        return [str(kind) for kind in self.relation.types]

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        with query_errors():
            return self.relation.to_arrow_table()

    @contextlib.contextmanager
    def reading(self) -> Iterator[pa.RecordBatchReader]:
        """The rows as they are computed, some at a time."""
        with query_errors():
            yield self.relation.to_arrow_reader(BATCH_ROWS)

    def pandas(self) -> pandas.DataFrame:
        """All rows as a data frame. Raises MissingPart where pandas is not installed."""
        if find_spec("pandas") is None:
            raise MissingPart("pandas is not installed: pip install pandas, or take .arrow()")
        with query_errors():
            return self.relation.df()

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows as tuples."""
        with query_errors():
            return list(self.relation.fetchall())

    def __repr__(self) -> str:
        return str(self.relation)


def _with_plain_integers(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Sums of integers come as 128-bit numbers, which Arrow and pandas take for decimals: as 64-bit numbers instead."""
    if "HUGEINT" not in map(str, relation.types):
        return relation
    columns = (
        f'CAST(#{number} AS BIGINT) AS "{name}"' if str(kind) == "HUGEINT" else f'#{number} AS "{name}"'
        for number, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), 1)
    )
    return relation.project(", ".join(columns))
