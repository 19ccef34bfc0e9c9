"""SQL that a page is made of: texts and numbers as literals, conditions of filters, and pages by key."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import pyarrow as pa

from schemas.doc import doc
from schemas.errors import BadQuery
from schemas.text import valid_text

Value = str | int | float | bool | None
MOST_ROWS = 1000
"""Most rows of a page."""
_OPERATORS = {"eq": "=", "ge": ">=", "lt": "<"}
_TERM = re.compile(r"(\w+):(eq|ge|lt|null)(?::(.*))?", re.DOTALL)


def literal(value: Value) -> str:
    """Return a value as SQL. A text in quotes has no escapes in DuckDB but the doubled quote."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"'{value}'::DOUBLE"
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


def number(text: str) -> float:
    """Return a number of a request. Raises BadQuery."""
    try:
        return float(text)
    except ValueError:
        raise BadQuery(f"{text!r} is not a number") from None


def condition(term: str, columns: Mapping[str, bool]) -> str:
    """Return one filter as an SQL condition: `reward:ge:0.5`, `reward:lt:1`, `stop_reason:eq:length`, `reward:null`.

    columns: the columns that may be filtered, and whether each has numbers. Raises BadQuery.
    """
    match = _TERM.fullmatch(term)
    if match is None or match[1] not in columns:
        raise BadQuery(f"{term!r} is not a filter: give column:eq:value, column:ge:number, column:lt:number or "
                       f"column:null, with a column of {', '.join(columns)}")  # fmt: skip
    name, operator, text = match[1], match[2], match[3]
    if (text is None) != (operator == "null"):
        raise BadQuery(f"{term!r} is not a filter: eq, ge and lt need a value, null has none")
    if text is None:
        return f'"{name}" IS NULL'
    if not columns[name]:
        if operator != "eq":
            raise BadQuery(f"{term!r} is not a filter: {name} has texts, which are filtered by eq")
        return f'"{name}" = {literal(text)}'
    return f'"{name}" {_OPERATORS[operator]} {literal(number(text))}'


class Order(NamedTuple):
    """Order of the rows of a page: by a column, then by position and id, so that it is total."""

    column: Annotated[str, doc("column to sort by")]
    descending: Annotated[bool, doc("largest first; nulls are last in both directions")] = False

    @classmethod
    def of(cls, text: str, columns: Sequence[str]) -> Order:
        """Parse `reward` or `-reward`. Raises BadQuery."""
        order = cls(text.removeprefix("-"), text.startswith("-"))
        if order.column not in columns:
            raise BadQuery(f"{text!r} is not an order: give one of {', '.join(columns)}, with - before it for the "
                           "largest first")  # fmt: skip
        return order

    @property
    def sql(self) -> str:
        return f'"{self.column}" {"DESC" if self.descending else "ASC"} NULLS LAST, position, sample'

    def after(self, cursor: str) -> str:
        """Return the condition of the rows after a cursor. Raises BadQuery if this console did not make it."""
        value, position, sample = _decoded(cursor)
        at, column = literal(position), f'"{self.column}"'
        tie = f"(position > {at} OR (position = {at} AND sample > {literal(sample)}))"  # faster than comparing tuples
        if value is None:
            return f"({column} IS NULL AND {tie})"
        key, sign = literal(value), "<" if self.descending else ">"
        return f"({column} {sign}= {key} OR {column} IS NULL) AND ({column} <> {key} OR {column} IS NULL OR {tie})"

    def cursor(self, columns: Mapping[str, Sequence[Value]]) -> str:
        """Return the cursor after the last row. columns: of the page; they have the order's column, `position` and
        `sample`.
        """
        key = [columns[name][-1] for name in (self.column, "position", "sample")]
        return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _decoded(cursor: str) -> tuple[float | int | None, int, str]:
    wrong = BadQuery("the cursor is not valid: take `next` of the page before, with the same order")
    try:
        key = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise wrong from None
    match key:
        case [int() | float() | None as value, int() as position, str() as sample] if valid_text(sample) == sample:
            return value, position, sample
    raise wrong


def columns_of(rows: pa.Table) -> dict[str, list[Value]]:
    """Return rows as an array per column."""
    return {
        name: column.to_pylist(maps_as_pydicts="lossy")
        for name, column in zip(rows.column_names, rows.columns, strict=True)
    }
