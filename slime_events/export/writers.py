"""Writers: where exported samples go. Each takes what was done with at one event, and is closed at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from slime_events.export.dump import dump_path, save_dump
from slime_events.export.files import open_new, write_file
from slime_events.export.sample import ExportedSample, Fate

ROWS_IN_SHARD = 20_000
AS_JSON = ("messages", "tools", "metadata", "reward_detail")
"""Columns of any shape, which a table holds as JSON text."""
Rows = Callable[[list[ExportedSample]], Sequence[msgspec.Struct]]


class Writer(Protocol):
    """files: what was written."""

    files: list[str]

    def write(self, samples: list[ExportedSample]) -> None:
        """Take in samples with one fate, of one step."""

    def close(self) -> None:
        """Write what is left."""


class DumpWriter:
    """slime's dumps: a file for each step, and for each evaluated version. template: a path with {rollout_id}."""

    def __init__(self, template: str) -> None:
        dump_path(template, 0)
        self._template = template
        self.files: list[str] = []

    def write(self, samples: list[ExportedSample]) -> None:
        """One file; what was rejected has none, as in slime."""
        step, fate = samples[0].step, samples[0].fate
        if fate is Fate.REJECTED or step is None:
            return
        path = dump_path(self._template, step, evaluation=fate is Fate.EVALUATED)
        save_dump(path, step, samples)
        self.files.append(path)

    def close(self) -> None:
        """Nothing is left."""


class JsonlWriter:
    """One file, a line for each row."""

    def __init__(self, url: str, rows: Rows) -> None:
        self._rows, self._file, self.files = rows, open_new(url), [url]

    def write(self, samples: list[ExportedSample]) -> None:
        """Some lines."""
        self._file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in self._rows(samples)))

    def close(self) -> None:
        """The file is whole."""
        self._file.close()


class ParquetWriter:
    """One Parquet file."""

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows, self._file = url, rows, open_new(url)
        self.files = [url]
        self._pending: list[Any] = []
        self._parquet: Any = None

    def write(self, samples: list[ExportedSample]) -> None:
        """Some rows; they are written a few thousand at a time."""
        self._pending += self._rows(samples)
        if len(self._pending) >= ROWS_IN_SHARD // 10:
            self._flush()

    def _flush(self) -> None:
        import pyarrow.parquet as pq

        if not self._pending:
            return
        rows, self._pending = table_of(self._pending), []
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._file, rows.schema)
        self._parquet.write_table(rows)

    def close(self) -> None:
        """The file is whole."""
        self._flush()
        if self._parquet is not None:
            self._parquet.close()
        self._file.close()


class HfWriter:
    """The layout that `datasets.load_dataset(folder)` reads: shards for each split, and a card that names them.

    Splits: `train` of what was trained on, `rejected`, and `test` of evaluations.
    """

    SPLITS: ClassVar = {Fate.TRAINED: "train", Fate.REJECTED: "rejected", Fate.EVALUATED: "test"}

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows, self.files = url.rstrip("/"), rows, list[str]()
        self._pending: dict[str, list[Any]] = {}
        self._shards: dict[str, int] = {}

    def write(self, samples: list[ExportedSample]) -> None:
        """Some rows of a split."""
        split = self.SPLITS[samples[0].fate]
        pending = self._pending.setdefault(split, [])
        pending += self._rows(samples)
        if len(pending) >= ROWS_IN_SHARD:
            self._flush(split)

    def _flush(self, split: str) -> None:
        rows, self._pending[split] = self._pending[split], []
        if not rows:
            return
        number = self._shards.get(split, 0)
        self._shards[split] = number + 1
        path = f"{self._url}/data/{split}-{number:05d}.parquet"
        write_file(path, parquet_of(rows))
        self.files.append(path)

    def close(self) -> None:
        """The last shards, and the card."""
        for split in list(self._pending):
            self._flush(split)
        write_file(f"{self._url}/README.md", card(sorted(self._shards)).encode())
        self.files.append(f"{self._url}/README.md")


def card(splits: Sequence[str]) -> str:
    """The data set's card, whose head says where the splits lie."""
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split in splits:
        lines += [f"  - split: {split}", f"    path: data/{split}-*.parquet"]
    return "\n".join([*lines, "---", "", "Rollouts of a slime-events run, as `slime-events export` wrote them.", ""])


def parquet_of(rows: Sequence[msgspec.Struct]) -> bytes:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table_of(rows), sink)
    return bytes(sink.getvalue())


def table_of(rows: Sequence[msgspec.Struct]) -> Any:
    """An Arrow table: one column a field, those of any shape as JSON text."""
    import pyarrow as pa

    names = rows[0].__struct_fields__
    columns = {name: [_cell(name, getattr(row, name)) for row in rows] for name in names}
    return pa.table({name: pa.array(values, _column_type(name, values)) for name, values in columns.items()})


def _cell(name: str, value: Any) -> Any:
    if name in AS_JSON:
        return None if value is None else msgspec.json.encode(value).decode()
    if name == "spans":
        return [{"start": start, "end": end, "version": version} for start, end, version in value]
    return value.value if isinstance(value, Fate) else value


def _column_type(name: str, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    if any(isinstance(value, list) and name == "input" for value in values):
        return None  # chats, of whatever fields their messages have
    ints, floats = pa.list_(pa.int32()), pa.list_(pa.float32())
    types = {
        "step": pa.int64(),
        "index": pa.int64(),
        "line": pa.int64(),
        "prompt_length": pa.int64(),
        "response_length": pa.int64(),
        "tokens": ints,
        "log_probs": floats,
        "loss_mask": pa.list_(pa.int8()),
        "spans": pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64()), ("version", pa.int64())])),
        "reward": pa.float64(),
        "advantage_input": pa.float64(),
        "rewards": pa.list_(pa.float64()),
    }
    return types.get(name, pa.string())
