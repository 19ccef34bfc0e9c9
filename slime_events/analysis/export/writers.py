"""Writers of exported samples. Each takes samples of one fate and step at a time, and is closed at the end."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any, ClassVar

import msgspec

from schemas.errors import DataError
from schemas.prompts import as_text
from slime_events.analysis.export.dump import check_template, dump_path, save_dump
from slime_events.analysis.export.files import open_new, write_file
from slime_events.analysis.export.sample import ExportedSample, Fate

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_IN_SHARD = 20_000
AS_JSON = ("messages", "group_prompt", "tools", "metadata", "reward_detail")
"""Columns of any shape, which a table holds as JSON text."""
NO_COLUMN = (
    "a column holds prompts of one kind: texts, or chats with only roles and texts. These prompts are of several "
    "kinds: export them with --to jsonl"
)
Rows = Callable[[list[ExportedSample]], Sequence[msgspec.Struct]]


class Writer:
    """Takes samples with one fate, of one step, at a time. files: the files written."""

    def __init__(self, url: str, rows: Rows = list) -> None:
        self._url, self._rows, self.files = url, rows, list[str]()

    def write(self, samples: list[ExportedSample]) -> None:
        """Take in samples with one fate, of one step."""
        raise NotImplementedError

    def close(self) -> None:
        """Write the remaining rows."""


class DumpWriter(Writer):
    """Writes slime's dumps: a file per step and per evaluated version. url: a path with {rollout_id}. Rejected samples
    have no file, as in slime.
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
    """Writes one file with a line per row; no file if there are no rows."""

    _file: IO[bytes] | None = None

    def write(self, samples: list[ExportedSample]) -> None:
        if self._file is None:
            self._file, self.files = open_new(self._url), [self._url]
        self._file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in self._rows(samples)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class ParquetWriter(Writer):
    """Writes one Parquet file, some thousand rows at a time; no file if there are no rows."""

    def __init__(self, url: str, rows: Rows = list) -> None:
        super().__init__(url, rows)
        self._pending: list[msgspec.Struct] = []
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
    """Writes the layout that `datasets.load_dataset(folder)` reads: shards per split, and a card that names each, so
    that files of an earlier export in the folder are ignored.

    Splits: `train` for trained samples, `rejected`, and `test` for evaluations.
    """

    SPLITS: ClassVar = {Fate.TRAINED: "train", Fate.REJECTED: "rejected", Fate.EVALUATED: "test"}

    def __init__(self, url: str, rows: Rows = list) -> None:
        super().__init__(url.rstrip("/"), rows)
        self._pending: dict[str, list[msgspec.Struct]] = {}
        self._shards: dict[str, list[str]] = {}
        self._schema: pa.Schema | None = None

    def write(self, samples: list[ExportedSample]) -> None:
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
        """Write the last shards, and the card, whose head lists the files of each split in order."""
        for split in list(self._pending):
            self._flush(split)
        lines = ["---", "configs:", "- config_name: default", "  data_files:"]
        for split in [split for split in self.SPLITS.values() if split in self._shards]:
            lines += [f"  - split: {split}", "    path:", *(f"    - {path}" for path in self._shards[split])]
        lines += ["---", "", "Rollouts of a slime-events run, as `slime-events export` wrote them.", ""]
        self.files.append(f"{self._url}/README.md")
        write_file(self.files[-1], "\n".join(lines).encode())


def table_of(rows: Sequence[msgspec.Struct], schema: pa.Schema | None = None) -> pa.Table:
    """Return an Arrow table with a column per field; fields of any shape become JSON text. schema: that of earlier
    tables. Raises DataError if the prompts do not fit one column.
    """
    import pyarrow as pa

    names = rows[0].__struct_fields__
    columns = {name: [_cell(name, getattr(row, name)) for row in rows] for name in names}
    table = pa.table({name: pa.array(values, _column_type(name, values)) for name, values in columns.items()})
    if schema is not None and table.schema != schema:
        raise DataError(NO_COLUMN)
    return table


def _cell(name: str, value: object) -> object:
    if value is None:
        return None
    return as_text(value) if name == "label" else msgspec.json.encode(value).decode() if name in AS_JSON else value


def _column_type(name: str, values: Sequence[object]) -> pa.DataType:
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


def _is_plain_chat(value: object) -> bool:
    """Return whether a prompt is a chat whose messages have only a role and a text."""
    return isinstance(value, list) and all(
        message.keys() == {"role", "content"} and all(isinstance(text, str) for text in message.values())
        for message in value
    )
