"""Writers: where exported samples go. Each takes samples of one fate and step at a time, and is closed at the end."""

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, ClassVar, Protocol

import msgspec

from schemas.errors import DataError
from slime_events.analysis.export.dump import dump_path, save_dump
from slime_events.analysis.export.files import open_new, write_file
from slime_events.analysis.export.sample import ExportedSample, Fate

ROWS_IN_SHARD = 20_000
AS_JSON = ("messages", "group_prompt", "tools", "metadata", "reward_detail")
"""Columns of any shape, which a table holds as JSON text."""
NO_COLUMN = (
    "a column holds prompts of one kind, texts or chats of nothing but roles and texts, and these are of several: "
    "export them with --to jsonl"
)
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
    """One file, a line for each row; none where there are no rows."""

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows, self.files = url, rows, list[str]()
        self._file: IO[bytes] | None = None

    def write(self, samples: list[ExportedSample]) -> None:
        """Some lines."""
        if self._file is None:
            self._file, self.files = open_new(self._url), [self._url]
        self._file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in self._rows(samples)))

    def close(self) -> None:
        """The file is whole."""
        if self._file is not None:
            self._file.close()


class ParquetWriter:
    """One Parquet file; none where there are no rows."""

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows, self.files = url, rows, list[str]()
        self._pending: list[Any] = []
        self._file: IO[bytes] | None = None
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
        rows, self._pending = table_of(self._pending, self._parquet and self._parquet.schema), []
        if self._file is None:
            self._file, self.files = open_new(self._url), [self._url]
            self._parquet = pq.ParquetWriter(self._file, rows.schema)
        self._parquet.write_table(rows)

    def close(self) -> None:
        """The file is whole."""
        self._flush()
        if self._file is not None:
            self._parquet.close()
            self._file.close()


class HfWriter:
    """The layout that `datasets.load_dataset(folder)` reads: shards for each split, and a card that names each of them,
    so that what an earlier export has left in the folder is no part of it.

    Splits: `train` of what was trained on, `rejected`, and `test` of evaluations.
    """

    SPLITS: ClassVar = {Fate.TRAINED: "train", Fate.REJECTED: "rejected", Fate.EVALUATED: "test"}

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows, self.files = url.rstrip("/"), rows, list[str]()
        self._pending: dict[str, list[Any]] = {}
        self._shards: dict[str, list[str]] = {}
        self._schema: Any = None

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
        table, shards = table_of(rows, self._schema), self._shards.setdefault(split, [])
        self._schema = table.schema
        shards.append(f"data/{split}-{len(shards):05d}.parquet")
        self.files.append(f"{self._url}/{shards[-1]}")
        write_file(self.files[-1], parquet_of(table))

    def close(self) -> None:
        """The last shards, and the card."""
        for split in list(self._pending):
            self._flush(split)
        shards = {split: self._shards[split] for split in self.SPLITS.values() if split in self._shards}
        write_file(f"{self._url}/README.md", card(shards).encode())
        self.files.append(f"{self._url}/README.md")


def card(shards: Mapping[str, Sequence[str]]) -> str:
    """The data set's card: its head lists the files of each split, in order."""
    lines = ["---", "configs:", "- config_name: default", "  data_files:"]
    for split, paths in shards.items():
        lines += [f"  - split: {split}", "    path:", *(f"    - {path}" for path in paths)]
    return "\n".join([*lines, "---", "", "Rollouts of a slime-events run, as `slime-events export` wrote them.", ""])


def parquet_of(table: Any) -> bytes:
    """A Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def table_of(rows: Sequence[msgspec.Struct], schema: Any = None) -> Any:
    """An Arrow table: one column a field, those of any shape as JSON text. schema: of the tables before it. Raises
    DataError for prompts that have no column in common.
    """
    import pyarrow as pa

    names = rows[0].__struct_fields__
    columns = {name: [_cell(name, getattr(row, name)) for row in rows] for name in names}
    table = pa.table({name: pa.array(values, _column_type(name, values)) for name, values in columns.items()})
    if schema is not None and table.schema != schema:
        raise DataError(NO_COLUMN)
    return table


def _cell(name: str, value: Any) -> Any:
    if name in AS_JSON:
        return None if value is None else msgspec.json.encode(value).decode()
    if name == "spans":
        return [{"start": start, "end": end, "version": version} for start, end, version in value]
    return value.value if isinstance(value, Fate) else value


def _column_type(name: str, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    if name == "input" and any(isinstance(value, list) for value in values):
        if not all(map(_is_plain_chat, values)):
            raise DataError(NO_COLUMN)
        return pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
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


def _is_plain_chat(value: Any) -> bool:
    """Whether a prompt is a chat of texts, with nothing in its messages besides."""
    return isinstance(value, list) and all(
        message.keys() == {"role", "content"} and all(isinstance(text, str) for text in message.values())
        for message in value
    )
