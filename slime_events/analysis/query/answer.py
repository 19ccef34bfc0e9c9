"""`Answer`: what a query gives, computed when its rows are taken."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from schemas.errors import MissingPart
from slime_events.analysis.query.bad_query import bad_query

if TYPE_CHECKING:
    import pandas

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
        with _query_errors():
            return self.relation.to_arrow_table()

    @contextlib.contextmanager
    def reading(self) -> Iterator[pa.RecordBatchReader]:
        """The rows as they are computed, some at a time."""
        with _query_errors():
            yield self.relation.to_arrow_reader(BATCH_ROWS)

    def pandas(self) -> pandas.DataFrame:
        """All rows as a data frame. Raises MissingPart where pandas is not installed."""
        if find_spec("pandas") is None:
            raise MissingPart("pandas is not installed: pip install pandas, or take .arrow()")
        with _query_errors():
            return self.relation.df()

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows as tuples."""
        with _query_errors():
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


@contextlib.contextmanager
def _query_errors() -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        raise bad_query(error) from error
