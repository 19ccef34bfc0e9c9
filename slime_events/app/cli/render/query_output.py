"""Rows of a query as a table for a terminal, CSV, JSON or Parquet."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from slime_events.analysis.query import Answer
from slime_events.app.cli.render.text import cell_text, shorten

FORMATS = ("table", "csv", "json", "parquet")
NARROWEST = 12
"""Characters that a column keeps where a table is too wide for the terminal."""
NO_TERMINAL = (160, 50)
"""Columns and lines where the output is no terminal and COLUMNS does not say."""


def write(answer: Answer, form: str, sink: BinaryIO, *, most: int = 0) -> None:
    """All rows; a table shows `most` of them (0: all) and says how many there are. Raises BadQuery."""
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
                _write_parquet(reader, sink)


def _write_table(reader: pa.RecordBatchReader, sink: BinaryIO, most: int) -> None:
    shown: list[list[str]] = []
    count = 0
    for batch in reader:
        count += batch.num_rows
        some = batch if not most else batch.slice(0, max(0, most - len(shown)))
        columns = [list(map(_cell, column)) for column in _columns(some)]
        shown += map(list, zip(*columns, strict=True))
    width = shutil.get_terminal_size(NO_TERMINAL).columns
    fits = sum(min(NARROWEST, len(name)) + 2 for name in reader.schema.names) <= width
    lines = _lines(reader.schema, shown, width) if fits else _records(reader.schema, shown, width)
    rows = f"{count:,} row" + "s" * (count != 1)
    lines.append(f"({rows})" if count == len(shown) else f"({rows}, {len(shown):,} shown: --rows 0 shows all)")
    sink.write(("\n".join(lines) + "\n").encode())


def _lines(schema: pa.Schema, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Head, rule and rows; numbers stand right, what is too wide is cut where the columns are widest."""
    right = [pa.types.is_integer(one) or pa.types.is_floating(one) for one in schema.types]
    head = [shorten(name, 40) for name in schema.names]
    widths = [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(head)]
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    rule = ["─" * one for one in widths]
    lines = []
    for row in (head, rule, *rows):
        cells = (shorten(cell, one) for cell, one in zip(row, widths, strict=True))
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        lines.append("  ".join(padded).rstrip())
    return lines


def _records(schema: pa.Schema, rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """More columns than fit beside each other: a block of lines for each row."""
    indent = max(map(len, schema.names)) + 2
    lines = []
    for number, row in enumerate(rows, 1):
        lines.append(f"─ row {number} ".ljust(min(width, 2 * indent), "─"))
        for name, cell in zip(schema.names, row, strict=True):
            lines.append(name.ljust(indent) + shorten(cell, max(NARROWEST, width - indent)))
    return lines


def _cell(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "milliseconds")
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_cell(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_cell, value)) + "]"
    return cell_text(value)


def _write_json(reader: pa.RecordBatchReader, sink: BinaryIO, json_columns: set[str]) -> None:
    """One array, a line for each row. What is JSON already is set in as it is."""
    sink.write(b"[")
    between = b"\n"
    for batch in reader:
        for row in zip(*_columns(batch), strict=True):
            plain = dict(zip(reader.schema.names, row, strict=True))
            for name in json_columns:
                if plain[name] is not None:
                    plain[name] = msgspec.Raw(plain[name].encode())
            sink.write(between + msgspec.json.encode(plain, enc_hook=str))
            between = b",\n"
    sink.write(b"\n]\n")


def _write_csv(reader: pa.RecordBatchReader, sink: BinaryIO) -> None:
    """With a head; lists, maps and structs as JSON text."""
    nested = [pa.types.is_nested(one) for one in reader.schema.types]
    fields = [pa.field(one.name, pa.string()) if deep else one for one, deep in zip(reader.schema, nested, strict=True)]
    with pyarrow.csv.CSVWriter(sink, pa.schema(fields)) as writer:
        for batch in reader:
            columns = [
                pa.array([None if v is None else _json(v) for v in plain], pa.string()) if deep else column
                for column, plain, deep in zip(batch.columns, _columns(batch), nested, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))


def _write_parquet(reader: pa.RecordBatchReader, sink: BinaryIO) -> None:
    with pyarrow.parquet.ParquetWriter(sink, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)


def _columns(batch: pa.RecordBatch) -> list[list[Any]]:
    """The values, column by column; maps as dicts."""
    return [column.to_pylist(maps_as_pydicts="lossy") for column in batch.columns]


def _json(value: Any) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
