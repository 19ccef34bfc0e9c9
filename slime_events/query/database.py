"""A DuckDB database over facts: everything is a view, nothing can be written, nothing outside can be reached."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb

from schemas.errors import BadQuery
from slime_events.config.nearest import did_you_mean
from slime_events.query.facts import FACTS, LOG
from slime_events.query.run_facts import FactParts, RunFacts
from slime_events.query.tables import TABLES

_SETTINGS = {"autoload_known_extensions": "false", "autoinstall_known_extensions": "false"}
_TABLE = re.compile(r"Table with name (\S+) does not exist")
_COLUMN = re.compile(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"')

Loaded = Sequence[tuple[RunFacts, Mapping[str, FactParts]]]
"""Each run with what was loaded of it, the one that was asked for first."""


def database(loaded: Loaded) -> duckdb.DuckDBPyConnection:
    """A database in memory of what was loaded; tables that need more than that are empty."""
    connection = duckdb.connect(config=_SETTINGS)
    connection.execute(f"CREATE SCHEMA {LOG}")
    files: list[str] = []
    for fact in FACTS.values():
        connection.register("nothing_" + fact.name, fact.schema.empty_table())
        rows = [f"SELECT '' AS run, 0 AS depth, * FROM nothing_{fact.name}"]
        for facts, parts in loaded:
            if fact.name in parts:
                part = parts[fact.name]
                files += map(str, part.files)
                rows += _rows(connection, facts, fact.name, part)
        connection.execute(f"CREATE VIEW {LOG}.{fact.name} AS " + " UNION ALL ".join(rows))
    for table in TABLES:
        connection.execute(table.view)
    connection.execute("SET allowed_paths = " + _texts(files))
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _rows(connection: duckdb.DuckDBPyConnection, facts: RunFacts, name: str, part: FactParts) -> Iterator[str]:
    """SELECTs that give the rows of one fact of one run."""
    head = f"SELECT {_text(facts.run)} AS run, {facts.depth} AS depth, * FROM"
    tail = "" if facts.end is None else f" WHERE position <= {facts.end}"
    if part.files:
        yield f"{head} read_parquet({_texts(list(map(str, part.files)))}){tail}"
    if part.table.num_rows:
        connection.register(f"tail_{name}_{facts.depth}", part.table)
        yield f"{head} tail_{name}_{facts.depth}{tail}"


def one_select(sql: str) -> str:
    """The statement, without what may stand after it. Raises BadQuery where it is not one SELECT."""
    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise bad_query(error) from error
    if len(statements) != 1:
        raise BadQuery(f"give one SELECT, not {len(statements)} statements")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name
        hint = ": say PIVOT ... ON column IN (...)" if kind == "MULTI" else ""
        raise BadQuery(f"this is {kind}, and a run can only be asked: give one SELECT{hint}")
    text = sql.encode()
    for offset, kind in reversed(duckdb.tokenize(sql)):
        if kind != duckdb.token_type.comment and text[offset : offset + 1] != b";":
            break
        text = text[:offset]
    return text.decode()


def facts_needed(select: str) -> frozenset[str]:
    """The facts that a query reads. Raises BadQuery where it names what there is not."""
    with _LOCK:
        try:
            _catalogue().sql(select)  # whose errors count lines from the query's first
            ((_, plan),) = _catalogue().execute(f"EXPLAIN (FORMAT JSON) {select}").fetchall()
        except duckdb.Error as error:
            raise bad_query(error) from error
    return frozenset(_scanned(json.loads(plan)))


def bad_query(error: duckdb.Error) -> BadQuery:
    """What DuckDB says, with its line, and the names that were probably meant."""
    said = str(error).strip()
    if found := _TABLE.search(said):
        said = said.replace(found[0], f"there is no table {found[1]}." + did_you_mean(found[1], _tables()))
    elif found := _COLUMN.search(said):
        name = found[1] or found[2]
        said += did_you_mean(name, _columns())
    if re.search(r'syntax error at or near "group"', said, re.IGNORECASE):
        said += "\nGROUP is a word of SQL: a group's id is the column group_id"
    return BadQuery(f"the query cannot be answered: {said}")


_LOCK = threading.Lock()


@functools.cache
def _catalogue() -> duckdb.DuckDBPyConnection:
    """All tables without a row: what a query would read is what its plan scans here."""
    connection = duckdb.connect(config=_SETTINGS)
    connection.execute(f"CREATE SCHEMA {LOG}")
    for fact in FACTS.values():
        connection.register("empty", fact.schema.empty_table())
        connection.execute(f"CREATE TABLE {LOG}.{fact.name} AS SELECT '' AS run, 0 AS depth, * FROM empty")
        connection.unregister("empty")
    for table in TABLES:
        connection.execute(table.view)
    connection.execute("SET enable_external_access = false")
    connection.execute("PRAGMA disable_optimizer")
    connection.execute("SET lock_configuration = true")
    return connection


def _scanned(plan: Any) -> Iterator[str]:
    """Names of the facts in a plan."""
    if isinstance(plan, list):
        for one in plan:
            yield from _scanned(one)
        return
    table = str(plan.get("extra_info", {}).get("Table", "")).replace('"', "")
    if table.startswith(f"memory.{LOG}."):
        yield table.rpartition(".")[2]
    yield from _scanned(plan.get("children", []))


def _tables() -> list[str]:
    return [table.name for table in TABLES] + [f"{LOG}.{name}" for name in FACTS]


def _columns() -> list[str]:
    return [column.name for table in TABLES for column in table.columns]


def _texts(values: Sequence[str]) -> str:
    return "[" + ", ".join(map(_text, dict.fromkeys(values))) + "]"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def columns_of(connection: duckdb.DuckDBPyConnection, table: str) -> list[tuple[str, str]]:
    """(name, type) of a table's columns, as DuckDB sees them."""
    return [(str(name), str(kind)) for name, kind, *_ in connection.execute(f"DESCRIBE {table}").fetchall()]


def ask(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """The query's rows, not yet computed. Raises BadQuery."""
    try:
        return connection.sql(sql)
    except duckdb.Error as error:
        raise bad_query(error) from error
