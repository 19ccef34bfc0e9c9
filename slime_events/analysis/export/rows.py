"""Exported lines and tables, read again: the samples of one step."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import msgspec

from schemas.errors import DataError
from slime_events.analysis.export.files import read_file
from slime_events.analysis.export.sample import ExportedSample, Fate
from slime_events.analysis.export.slime_samples import as_slime
from slime_events.analysis.export.writers import AS_JSON
from slime_events.plugins.sample import Sample

SUFFIXES = (".jsonl", ".parquet")


def load_rows(path: str, step: int) -> list[Sample]:
    """The samples that were trained in a step, in order. Raises DataError for what is no export of samples."""
    data = read_file(path)
    try:
        rows = list(_from_parquet(data, step) if path.endswith(".parquet") else _from_lines(data, step))
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, KeyError, OSError) as error:
        raise DataError(f"{path} holds no exported samples: {error}") from error
    return as_slime(rows)


def _from_lines(data: bytes, step: int) -> Iterator[ExportedSample]:
    decoder = msgspec.json.Decoder(ExportedSample)
    for line in data.splitlines():
        row = decoder.decode(line)
        if row.fate is Fate.TRAINED and row.step == step:
            yield row


def _from_parquet(data: bytes, step: int) -> Iterator[ExportedSample]:
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data), filters=[("step", "=", step), ("fate", "=", Fate.TRAINED.value)])
    for plain in table.to_pylist():
        read: dict[str, Any] = {name: _read(name, value) for name, value in plain.items()}
        yield msgspec.convert(read, ExportedSample)


def _read(name: str, value: Any) -> Any:
    if name in AS_JSON and value is not None:
        return msgspec.json.decode(value)
    if name == "spans":
        return [(span["start"], span["end"], span["version"]) for span in value]
    return value
