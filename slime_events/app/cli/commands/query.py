"""`slime-events query`: SQL over a run, live, finished or archived (docs/querying.md)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.analysis.query import tables_of
from slime_events.analysis.query.tables import TABLES
from slime_events.app.cli.out_file import new_file
from slime_events.app.cli.render.query_output import FORMATS, write
from slime_events.app.cli.render.text import table
from slime_events.app.cli.run_argument import RunParser
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.run.run_reader import open_run

ROWS = 100


def main(argv: Sequence[str] = ()) -> int:
    """Print or write the rows. Errors are raised."""
    said = _parser().parse_intermixed_args(argv)  # the SELECT may stand behind flags
    if said.tables:
        rows = [(one.name, one.description.split(". ")[0]) for one in TABLES]
        sys.stdout.write(table(("table", "rows"), rows) + "\n")
        return 0
    if said.schema is not None:
        sys.stdout.write(_schema(said.schema))
        return 0
    if said.format == "parquet" and said.out is None and sys.stdout.isatty():
        raise ImpossibleCombination("Parquet is not for a terminal: say --out FILE")
    asyncio.run(_query(said, _sql(said)))
    return 0


async def _query(said: argparse.Namespace, sql: str) -> None:
    async with (
        open_run(said.run, said.runs_dir) as opened,
        tables_of(opened, with_parent=said.with_parent) as tables,
    ):
        answer = await tables.sql(sql)
        with _sink(said.out) as sink:
            write(answer, said.format, sink, most=said.rows)


@contextlib.contextmanager
def _sink(out: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a new file."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with new_file(out) as file:
        yield file


def _sql(said: argparse.Namespace) -> str:
    if (said.sql is None) == (said.file is None):
        raise ImpossibleCombination("give the SELECT itself, or --file with it: one of them")
    if said.file is None:
        return str(said.sql)
    if said.file == "-":
        return sys.stdin.read()
    try:
        return Path(said.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"--file {said.file} cannot be read: {error}") from error


def _schema(name: str) -> str:
    found = next((one for one in TABLES if one.name == name), None)
    if found is None:
        names = [one.name for one in TABLES]
        raise InvalidValue(f"there is no table {name}.{did_you_mean(name, names)} --tables lists them")
    rows = [(column.name, column.type, column.description) for column in found.columns]
    return f"{found.name}: {found.description}\n\n{table(('column', 'type', 'is'), rows)}\n"


def _parser() -> argparse.ArgumentParser:
    parser = RunParser(prog="slime-events query", description=__doc__)
    parser.add_argument("sql", nargs="?", metavar="SELECT", help="one statement in DuckDB's SQL")
    parser.add_argument("--file", metavar="FILE", help="read it from a file, - for standard input")
    parser.add_argument("--format", choices=FORMATS, default="table", help="of the rows [table]")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"shown as a table, 0 for all [{ROWS}]")
    parser.add_argument("--with-parent", action="store_true", help="and the runs that it branched from, up to there")
    parser.add_argument("--tables", action="store_true", help="list the tables, and ask nothing")
    parser.add_argument("--schema", metavar="TABLE", help="list a table's columns, and ask nothing")
    return parser
