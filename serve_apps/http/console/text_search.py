"""`TextSearch`: finds the samples of stored tables whose prompt or response contains a text."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Annotated, NamedTuple

import duckdb
import pyarrow as pa

from schemas.doc import doc
from serve_apps.http.console.rows import literal

FOUND = "found_samples"
"""Table of the found samples in a query."""
MOST_FOUND = 50_000
"""Most rows that are listed for a text. A text that more of them have is looked for by each query: it ends early."""
MOST_BYTES = 512_000_000
"""Bytes of all texts up to which they are kept in lower case. Longer ones are read as they are."""
KEPT = 16
"""Texts whose rows are kept."""

_PROMPTS = (
    "CREATE OR REPLACE TABLE searched_prompts AS SELECT lower(prompt) AS prompt, list(rowid) AS rows FROM samples "
    "WHERE prompt IS NOT NULL GROUP BY lower(prompt)"
)
"""Each prompt once: the samples of a group share it."""
_RESPONSES = (
    "CREATE OR REPLACE TABLE searched_responses AS SELECT rowid AS row, lower(text) AS response FROM samples "
    "WHERE text IS NOT NULL"
)


def has_text(column: str, text: str) -> str:
    """Return the condition that a column contains a text, in any case. ILIKE is faster, but has wildcards."""
    if text.isascii() and not set(text) & set("%_\\"):
        return f"{column} ILIKE {literal(f'%{text}%')}"
    return f"contains(lower({column}), {literal(text.lower())})"


def text_condition(text: str) -> str:
    """Return the condition that a sample's prompt or response contains a text, in any case; empty for no text."""
    return text and f"({has_text('prompt', text)} OR {has_text('text', text)})"


class Matches(NamedTuple):
    """Samples with a text."""

    condition: Annotated[str, doc("condition on the stored `samples`")]
    rows: Annotated[pa.Table | None, doc("table that the condition reads as FOUND; None if it reads none")]


class TextSearch:
    """The texts of one snapshot of the tables in lower case, kept from the first search on, and what was found in them.

    Use it in threads. Each connection is a cursor of the database that has the stored `samples`. Errors are duckdb's.
    """

    def __init__(self) -> None:
        self._lock, self._is_kept = threading.Lock(), False
        self._matches: OrderedDict[str, Matches] = OrderedDict()

    def matching(self, connection: duckdb.DuckDBPyConnection, text: str) -> str:
        """Give a connection the samples with a text, which is looked for once, and return the condition for them."""
        with self._lock:
            matches = self._matches.pop(text, None) or self._look(connection, text)
            self._matches[text] = matches
            if len(self._matches) > KEPT:
                self._matches.popitem(last=False)
        if matches.rows is not None:
            connection.register(FOUND, matches.rows)
        return matches.condition

    def prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Keep the texts in lower case, unless they are too long."""
        with self._lock:
            self._prepare(connection)

    def _prepare(self, connection: duckdb.DuckDBPyConnection) -> bool:
        if not self._is_kept and _bytes(connection) <= MOST_BYTES:
            connection.execute(_PROMPTS)
            connection.execute(_RESPONSES)
            self._is_kept = True
        return self._is_kept

    def _look(self, connection: duckdb.DuckDBPyConnection, text: str) -> Matches:
        if self._prepare(connection):
            needle = literal(text.lower())
            rows = connection.sql(
                f"SELECT row FROM searched_responses WHERE contains(response, {needle}) UNION ALL "
                f"SELECT unnest(rows) FROM searched_prompts WHERE contains(prompt, {needle}) LIMIT {MOST_FOUND + 1}"
            ).to_arrow_table()
            if rows.num_rows <= MOST_FOUND:
                return Matches(f"rowid IN (SELECT row FROM {FOUND})", rows)
        return Matches(text_condition(text), None)


def _bytes(connection: duckdb.DuckDBPyConnection) -> int:
    (size,) = connection.sql("SELECT coalesce(sum(strlen(text)), 0) FROM samples").fetchall()[0]
    return int(size)
