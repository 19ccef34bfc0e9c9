"""A DuckDB database over event tables. Everything is a view: nothing can be written, and nothing outside can be
reached.
"""

import functools
import json
import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from schemas.errors import BadQuery
from slime_events.analysis.query.answer import query_errors
from slime_events.analysis.query.detectors import DETECTORS
from slime_events.analysis.query.detectors.detector import SECOND_REWARDS, Detector
from slime_events.analysis.query.event_tables import EVENT_TABLES, LOG
from slime_events.analysis.query.run_rows import RunRows, TableRows
from slime_events.analysis.query.tables import TABLES

_SETTINGS = {
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "memory_limit": "25%",
    "temp_directory": str(Path(tempfile.gettempdir(), f"slime-events-query-{os.getpid()}")),
}
"""memory_limit: of the machine's memory, because a run beside needs the rest. temp_directory: swap for queries that
exceed it; deleted afterwards."""

Loaded = Sequence[tuple[RunRows, Mapping[str, TableRows]]]
"""Each run with its loaded rows. The queried run is first."""


NO_REWARDS = pa.table({"sample": pa.array([], pa.string()), "reward": pa.array([], pa.float64())})
"""The rewards of a second grader, if there is none."""


def database(
    loaded: Loaded,
    names: Collection[str],
    detectors: Iterable[Detector] = (),
    second_rewards: pa.Table = NO_REWARDS,
    stored: Collection[str] = (),
) -> duckdb.DuckDBPyConnection:
    """Open a database in memory with these event tables, the tables that depend on them alone, and these detectors,
    which must do so too.

    second_rewards: those of a second grader, as in `NO_REWARDS`. stored: tables that are computed once, for several
    queries. Without names: the catalogue.
    """
    connection = duckdb.connect(config=_SETTINGS) if names else _catalogue().cursor()
    connection.execute("SET enable_progress_bar = false")  # it would be printed among the rows
    if not names:
        return connection
    connection.execute(f"CREATE SCHEMA {LOG}")
    files: list[str] = []
    for name in names:
        rows: list[str] = []
        for run, tables in loaded:
            files += map(str, tables[name].files)
            rows += _rows(connection, run, name, tables[name])
        connection.execute(f"CREATE VIEW {LOG}.{name} AS " + " UNION ALL ".join(rows))
    for table in TABLES:
        if _parts_of(table.name) <= set(names):
            connection.execute(table.statement(stored=table.name in stored))
    connection.register(SECOND_REWARDS, second_rewards)
    for detector in detectors:
        connection.execute(detector.macro)
    connection.execute("SET allowed_paths = " + _texts(files))
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _rows(connection: duckdb.DuckDBPyConnection, run: RunRows, name: str, rows: TableRows) -> Iterator[str]:
    """Yield SELECTs of one event table of one run: from files, then from memory."""
    depth, tail = run.depth, run.where(name)
    head = f"SELECT {_text(run.opened.run)} AS run, {depth} AS depth, * FROM"
    if rows.files:
        yield f"{head} read_parquet({_texts(list(map(str, rows.files)))}){tail}"
    connection.register(f"tail_{name}_{depth}", rows.table)
    yield f"{head} tail_{name}_{depth}{tail}"


def one_select(sql: str) -> str:
    """Return the statement, without semicolon and comments after it. Raises BadQuery if it is not one SELECT."""
    with query_errors(sql):
        statements = duckdb.extract_statements(sql)
    if len(statements) != 1:
        raise BadQuery(f"the query has {len(statements)} statements. Give one SELECT")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name
        hint = ". For a pivot, name the values: PIVOT ... ON column IN (...)" if kind == "MULTI" else ""
        raise BadQuery(f"{kind} statements are refused: a run is read-only. Give one SELECT{hint}")
    text = sql.encode()
    for offset, kind in reversed(duckdb.tokenize(sql)):
        if kind != duckdb.token_type.comment and text[offset : offset + 1] != b";":
            break
        text = text[:offset]
    return text.decode()


def event_tables_of(select: str) -> frozenset[str]:
    """Return the event tables that a query reads. Raises BadQuery if it names a table or column that does not exist."""
    with _LOCK, query_errors(select, lines_before=1):
        ((_, plan),) = _catalogue().execute(f"EXPLAIN (FORMAT JSON)\n{select}").fetchall()
    return frozenset(_scanned(json.loads(plan)))


def detectors_in(select: str, names: Collection[str]) -> list[Detector]:
    """Return the detectors that a query may read. names: its event tables.

    Creating one takes 20 ms, so a database has no others.
    """
    text = select.lower()
    return [detector for detector in DETECTORS if detector.name in text and parts_of_detector(detector) <= set(names)]


_LOCK = threading.Lock()


@functools.cache
def _catalogue() -> duckdb.DuckDBPyConnection:
    """Return a database with all tables, empty: a query reads the tables that its plan scans here."""
    connection = duckdb.connect(config=_SETTINGS)
    connection.execute(f"CREATE SCHEMA {LOG}")
    for event_table in EVENT_TABLES.values():
        connection.register("empty", event_table.schema.empty_table())
        connection.execute(f"CREATE TABLE {LOG}.{event_table.name} AS SELECT '' AS run, 0 AS depth, * FROM empty")
        connection.unregister("empty")
    for table in TABLES:
        connection.execute(table.statement())
    connection.register("no_rewards", NO_REWARDS)
    connection.execute(f"CREATE TABLE {SECOND_REWARDS} AS FROM no_rewards")
    for detector in DETECTORS:
        connection.execute(detector.macro)
    connection.execute("SET enable_external_access = false")
    connection.execute("PRAGMA disable_optimizer")
    return connection


@functools.cache
def _parts_of(table: str) -> frozenset[str]:
    """Return the event tables on which a table depends."""
    return event_tables_of(f"FROM {table}")


def parts_of_detector(detector: Detector) -> frozenset[str]:
    """Return the event tables on which a detector depends."""
    return frozenset().union(*(_parts_of(table) for table in detector.reads if table != SECOND_REWARDS))


def _scanned(plan: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the names of the event tables in a plan."""
    for node in plan:
        table = str(node.get("extra_info", {}).get("Table", "")).replace('"', "")
        if table.startswith(f"memory.{LOG}."):
            yield table.rpartition(".")[2]
        yield from _scanned(node.get("children", []))


def _texts(values: Sequence[str]) -> str:
    return "[" + ", ".join(map(_text, dict.fromkeys(values))) + "]"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
