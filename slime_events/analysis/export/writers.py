"""Writers: where exported samples go. Each takes samples of one fate and step at a time, and is closed at the end."""

import io
from collections.abc import Callable, Sequence
from typing import IO, Any, ClassVar

import msgspec

from schemas.errors import DataError
from schemas.prompts import as_text
from slime_events.analysis.export.dump import check_template, dump_path, save_dump
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


class Writer:
    """Takes samples with one fate, of one step, at a time. files: what was written."""

    def __init__(self, url: str, rows: Rows = list) -> None:
        self._url, self._rows, self.files = url, rows, list[str]()

    def write(self, samples: list[ExportedSample]) -> None:
        """Take in samples with one fate, of one step."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is left."""


class DumpWriter(Writer):
    """slime's dumps: a file for each step, and for each evaluated version. url: a path with {rollout_id}. What was
    rejected has no file, as in slime.
    """

    def __init__(self, url: str, rows: Rows = list) -> None:
        super().__init__(url, rows)
        check_template(url)

    def write(self, samples: list[ExportedSample]) -> None:
        step, fate = samples[0].step, samples[0].fate
        if fate is not Fate.REJECTED and step is not None:
            self.files.append(dump_path(self._url, step, evaluation=fate is Fate.EVALUATED))
            save_dump(self.files[-1], step, samples)


class JsonlWriter(Writer):
    """One file, a line for each row; none where there are no rows."""

    _file: IO[bytes] | None = None

    def write(self, samples: list[ExportedSample]) -> None:
        if self._file is None:
            self._file, self.files = open_new(self._url), [self._url]
        self._file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in self._rows(samples)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class ParquetWriter(Writer):
    """One Parquet file; none where there are no rows. Rows are written a few thousand at a time."""

    def __init__(self, url: str, rows: Rows = list) -> None:
        super().__init__(url, rows)
        self._pending: list[Any] = []
        self._file: IO[bytes] | None = None
        self._parquet: Any = None

    def write(self, samples: list[ExportedSample]) -> None:
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
        self._flush()
        if self._file is not None:
            self._parquet.close()
            self._file.close()


class HfWriter(Writer):
    """The layout that `datasets.load_dataset(folder)` reads: shards for each split, and a card that names each of them,
    so that what an earlier export has left in the folder is no part of it.

    Splits: `train` of what was trained on, `rejected`, and `test` of evaluations.
    """

    SPLITS: ClassVar = {Fate.TRAINED: "train", Fate.REJECTED: "rejected", Fate.EVALUATED: "test"}

    def __init__(self, url: str, rows: Rows = list) -> None:
        super().__init__(url.rstrip("/"), rows)
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
        import pyarrow.parquet as pq

        rows, self._pending[split] = self._pending[split], []
        if not rows:
            return
        table, shards, file = table_of(rows, self._schema), self._shards.setdefault(split, []), io.BytesIO()
        self._schema = table.schema
        shards.append(f"data/{split}-{len(shards):05d}.parquet")
        self.files.append(f"{self._url}/{shards[-1]}")
        pq.write_table(table, file)
        write_file(self.files[-1], file.getvalue())

    def close(self) -> None:
        """The last shards, and the card: its head lists the files of each split, in order."""
        for split in list(self._pending):
            self._flush(split)
        lines = ["---", "configs:", "- config_name: default", "  data_files:"]
        for split in [split for split in self.SPLITS.values() if split in self._shards]:
            lines += [f"  - split: {split}", "    path:", *(f"    - {path}" for path in self._shards[split])]
        lines += ["---", "", "Rollouts of a slime-events run, as `slime-events export` wrote them.", ""]
        self.files.append(f"{self._url}/README.md")
        write_file(self.files[-1], "\n".join(lines).encode())


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
    if value is None:
        return None
    return as_text(value) if name == "label" else msgspec.json.encode(value).decode() if name in AS_JSON else value


def _column_type(name: str, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    if name == "input" and any(isinstance(value, list) for value in values):
        if not all(map(_is_plain_chat, values)):
            raise DataError(NO_COLUMN)
        return pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
    span = pa.struct([(part, pa.int64()) for part in ("start", "end", "version")])
    types = {
        **dict.fromkeys(("step", "index", "line", "prompt_length", "response_length"), pa.int64()),
        **dict.fromkeys(("reward", "advantage_input"), pa.float64()),
        "tokens": pa.list_(pa.int32()),
        "log_probs": pa.list_(pa.float32()),
        "teacher_log_probs": pa.list_(pa.float32()),
        "loss_mask": pa.list_(pa.int8()),
        "spans": pa.list_(span),
        "rewards": pa.list_(pa.float64()),
    }
    return types.get(name, pa.string())


def _is_plain_chat(value: Any) -> bool:
    """Whether a prompt is a chat of texts, with nothing in its messages besides."""
    return isinstance(value, list) and all(
        message.keys() == {"role", "content"} and all(isinstance(text, str) for text in message.values())
        for message in value
    )
