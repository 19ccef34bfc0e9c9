"""`slime-events query`: run SQL over a run, live, finished or archived (docs/querying.md)."""

import argparse
import contextlib
import datetime
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.analysis.query import Answer, tables_of
from slime_events.analysis.query.tables import TABLES
from slime_events.app.cli.files import new_file
from slime_events.app.cli.render.text import (
    cell_text,
    columns_text,
    exact_json,
    one_line,
    shorten,
    table,
    terminal_width,
)
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.run.run_reader import open_run

NARROWEST = 12
"""Least width of a column on a terminal, in characters."""
FORMULA = r"^[=+\-@\t\r\n\x{FF1D}\x{FF0B}\x{FF0D}\x{FF20}]"
"""Matches a text that a spreadsheet may take for a formula; includes the full-width forms of these characters."""


async def run(arguments: argparse.Namespace) -> int:
    """Print or write the rows."""
    if arguments.tables:
        print(table(("table", "rows"), [(listed.name, listed.description.split(". ")[0]) for listed in TABLES]))
        return 0
    if arguments.schema is not None:
        print(_schema(arguments.schema))
        return 0
    if arguments.format == "parquet" and arguments.out is None and sys.stdout.isatty():
        raise ImpossibleCombination("--format parquet cannot be written to a terminal: give --out FILE")
    sql = _sql(arguments)
    async with (
        open_run(arguments.run, arguments.runs_dir) as opened,
        tables_of(opened, with_parent=arguments.with_parent) as tables,
    ):
        answer = await tables.sql(sql)
        with new_file(arguments.out) if arguments.out else contextlib.nullcontext(sys.stdout.buffer) as sink:
            write(answer, arguments.format, sink, most=arguments.rows)
            sink.flush()
    return 0


def _sql(arguments: argparse.Namespace) -> str:
    if (arguments.sql is None) == (arguments.file is None):
        raise ImpossibleCombination("Give a SELECT or --file, not both.")
    if arguments.file is None:
        return str(arguments.sql)
    if arguments.file == "-":
        return sys.stdin.read()
    try:
        return Path(arguments.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"--file {arguments.file} cannot be read: {error}") from error


def _schema(name: str) -> str:
    names = [listed.name for listed in TABLES]
    if name not in names:
        raise InvalidValue(f"there is no table {name}.{did_you_mean(name, names)} See --tables.")
    listed = TABLES[names.index(name)]
    rows = [(column.name, column.type, column.description) for column in listed.columns]
    return f"{listed.name}: {listed.description}\n\n{table(('column', 'type', 'description'), rows)}"


def write(answer: Answer, form: str, sink: BinaryIO, *, most: int = 0) -> None:
    """Write all rows. form: table, csv, json or parquet. most: rows that a table shows, 0 for all. Raises BadQuery."""
    with answer.reading() as reader:
        match form:
            case "table":
                _write_table(reader, sink, most)
            case "csv":
                _write_csv(reader, sink)
            case "json":
                kinds = zip(answer.columns, answer.types, strict=True)
                _write_json(reader, sink, {name for name, kind in kinds if kind == "JSON"})
            case _:
                with pyarrow.parquet.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
                    for batch in reader:
                        writer.write_batch(batch)


def _write_table(reader: pa.RecordBatchReader, sink: BinaryIO, most: int) -> None:
    """Write a table, cut to the width of a terminal; a file gets the full width."""
    shown: list[list[str]] = []
    count = 0
    for batch in reader:
        count += batch.num_rows
        some = batch if not most else batch.slice(0, max(0, most - len(shown)))
        shown += map(list, zip(*([_cell(value) for value in column] for column in _columns(some)), strict=True))
    width = terminal_width() if sink is sys.stdout.buffer else None
    if width is not None and sum(min(NARROWEST, len(name)) + 2 for name in reader.schema.names) > width:
        text = _records(reader.schema, shown, width)
    else:
        right = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in reader.schema.types]
        cells = [list(map(one_line, row)) for row in shown]
        text = columns_text(list(map(one_line, reader.schema.names)), cells, right, width=width, cut=True)
    rows = f"{count:,} row" + "s" * (count != 1)
    note = f"({rows})" if count == len(shown) else f"({rows}, {len(shown):,} shown: --rows 0 shows all)"
    sink.write(f"{text}\n{note}\n".encode())


def _records(schema: pa.Schema, rows: Sequence[Sequence[str]], width: int) -> str:
    """Return a block of lines per row, for a table with more columns than fit on a terminal."""
    indent = max(map(len, schema.names)) + 2
    lines = []
    for number, row in enumerate(rows, 1):
        lines.append(f"─ row {number} ".ljust(min(width, 2 * indent), "─"))
        for name, cell in zip(schema.names, row, strict=True):
            lines.append(one_line(name).ljust(indent) + shorten(cell, max(NARROWEST, width - indent)))
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "milliseconds")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_cell(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_cell, value)) + "]"
    return cell_text(value)


def _write_json(reader: pa.RecordBatchReader, sink: BinaryIO, json_columns: set[str]) -> None:
    """Write one JSON array, one line per row. Columns of type JSON are inserted unchanged."""
    sink.write(b"[")
    between = b"\n"
    for batch in reader:
        for row in zip(*_columns(batch), strict=True):
            plain = dict(zip(reader.schema.names, row, strict=True))
            for name in json_columns:
                if plain[name] is not None:
                    plain[name] = msgspec.Raw(plain[name].encode())
            sink.write(between + exact_json(msgspec.json.encode(plain, enc_hook=str).decode()).encode())
            between = b",\n"
    sink.write(b"\n]\n")


def _write_csv(reader: pa.RecordBatchReader, sink: BinaryIO) -> None:
    """Write CSV with a header; lists, maps and structs as JSON text. Texts that look like formulas are quoted."""
    kinds = [pa.string() if pa.types.is_nested(field.type) else _plain_text(field.type) for field in reader.schema]
    names = pa.array(reader.schema.names, pa.string())
    schema = pa.schema(list(zip(_no_formulas(names).to_pylist(), kinds, strict=True)))
    as_json = functools.partial(json.dumps, default=str, ensure_ascii=False)
    with pyarrow.csv.CSVWriter(sink, schema) as writer:
        for batch in reader:
            columns = [_no_formulas(column) for column in batch.columns]
            for number, values in enumerate(_columns(batch)):
                if pa.types.is_nested(columns[number].type):
                    texts = [None if value is None else as_json(value) for value in values]
                    columns[number] = pa.array(texts, pa.string())
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _plain_text(kind: pa.DataType) -> pa.DataType:
    """Return the value type of a dictionary type, and any other type unchanged."""
    return _plain_text(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _no_formulas(column: pa.Array) -> pa.Array:
    """Put an apostrophe before a text that may be a formula, as OWASP recommends; other columns stay unchanged."""
    column = column.cast(_plain_text(column.type)) if pa.types.is_dictionary(column.type) else column
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return column
    begins = pyarrow.compute.match_substring_regex(column, FORMULA)
    apostrophe, nothing = pa.scalar("'", column.type), pa.scalar("", column.type)
    quoted = pyarrow.compute.binary_join_element_wise(apostrophe, column, nothing)
    return pyarrow.compute.if_else(begins, quoted, column)


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return the values column by column; maps as dicts."""
    return [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]
