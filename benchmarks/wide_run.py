"""Make a run of 10^6 samples for the console in seconds: an archive of a few steps whose stored tables are wider.

The event tables of an archive are Parquet files of its bundle (`slime_events/analysis/query/cache.py`). Here they are
written directly, with the columns that the views and the timeline read; the other columns are null. The views over
them, their storing, the server and the page are the product's. A sample takes 1 to 7 s on one of two engines, as long
as its response is; a step of 64 samples takes 10 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb

from benchmarks.kept_log import RUN, fill_archive
from slime_events.analysis.query.cache import FOLDER, bundles, digest_of
from slime_events.analysis.query.database import event_tables_of
from slime_events.analysis.query.event_tables import EVENT_TABLES
from storage.archive.reader import ArchiveReader

TABLES = ("samples", "rewards", "groups", "steps", "trained", "intervals")
PER_GROUP, PER_STEP = 8, 64
STEP_S = 10.0
SETTINGS = {"preserve_insertion_order": "true"}
_TIME = "make_timestamp(CAST(1.7e15 + 1e6 * ({}) AS BIGINT))"
_GROUP = "printf('train-0-%07d', i // 8)"
_SAMPLE = f"{_GROUP} || '-s' || (i % 8)"
_LENGTH = "50 + hash(i) % 300"
_BEGIN = "(i // 64) * 10 + 0.2 + 0.002 * (i % 64)"
_END = f"{_BEGIN} + ({_LENGTH}) / 50.0"
_SAMPLES = {
    "rollout_requested": {
        "position": "i * 3 + 2", "time": _TIME.format("(i // 64) * 10"), "producer": "'conductor'", "sample": _SAMPLE,
        "group": _GROUP, "index": "i % 8", "prompt": "16", "seed": "i", "min_version": "i // 64", "attempt": "0",
        "purpose": "'train'", "maker": "'engine'",
    },
    "rollout_completed": {
        "position": "i * 3 + 3", "time": _TIME.format(_END), "producer": "'engine-' || i % 2", "sample": _SAMPLE,
        "group": _GROUP, "attempt": "0", "start": "0", "length": _LENGTH, "prompt_length": "16", "rollout": "''",
        "stop": "CASE WHEN hash(i) % 300 > 280 THEN 'length' ELSE 'stop' END",
        "text": "'The answer to question ' || i // 8 || ' is ' || hash(i) % 97 || ' because of the sum.'",
        "spans": f"[{{'start': 0, 'end': {_LENGTH}, 'version': i // 64}}]", "digest": "md5(i::VARCHAR)",
        "engine": "'engine-' || i % 2", "tokens": _LENGTH, "log_probs": _LENGTH, "timings_queued": "0.2",
        "timings_generating": f"({_LENGTH}) / 50.0", "timings_updating": "0.0",
    },
    "reward_assigned": {
        "position": "i * 3 + 4", "time": _TIME.format(f"{_END} + 0.01"), "producer": "'grader'", "sample": _SAMPLE,
        "group": _GROUP, "value": "(hash(i) % 97 > 40)::DOUBLE", "grader": "'exact'", "grader_digest": "''",
        "seconds": "0.005",
    },
}  # fmt: skip
_NAMES = "list_transform(range(i * {0}, (i + 1) * {0}), lambda n: {1})"
_GROUPS_OF_STEP = _NAMES.format(8, "printf('train-0-%07d', n)")
_SAMPLES_OF_STEP = _NAMES.format(64, "printf('train-0-%07d-s%d', n // 8, n % 8)")
_GROUPS = {
    "prompt_submitted": {
        "position": "i * 24 + 1", "time": _TIME.format("(i // 8) * 10 - 0.001"), "producer": "'conductor'",
        "group": "printf('train-0-%07d', i)", "text": "'What is the answer to question ' || i || '?'", "tokens": "16",
        "source_path": "'train.jsonl'", "source_row": "i % 10000", "source_epoch": "i // 10000",
        "purpose": "'train'", "dataset": "'train'", "label": "'42'",
    },
    "group_accepted": {
        "position": "i * 24 + 24", "time": _TIME.format("(i // 8) * 10 + 8 + 0.01 * (i % 8)"),
        "producer": "'conductor'", "group": "printf('train-0-%07d', i)", "filter": "'none'",
    },
}  # fmt: skip
_STEPS = {
    "batch_sealed": {
        "position": "i * 192 + 190", "time": _TIME.format("i * 10 + 8.2"), "producer": "'conductor'", "step": "i",
        "groups": _GROUPS_OF_STEP, "samples": _SAMPLES_OF_STEP, "oldest_version": "i",
        "rewards": "list_transform(range(64), lambda n: (n % 2 * 2 - 1)::DOUBLE)",
        "raw_rewards": "list_transform(range(64), lambda n: (n % 2)::DOUBLE)", "digest": "md5(i::VARCHAR)",
    },
    "step_committed": {
        "position": "i * 192 + 191", "time": _TIME.format("i * 10 + 9.6"), "producer": "'trainer'", "step": "i",
        "version": "i + 1", "parent_version": "i", "samples": "64", "tokens": "12800",
        "seconds": "MAP {'batch': 0.1, 'train': 1.2}", "metrics": "MAP {'loss': 1.0 / (i + 1), 'grad_norm': 0.5}",
        "weights_digest": "md5(i::VARCHAR)",
    },
    "weights_activated": {
        "position": "i * 192 + 192", "time": _TIME.format("i * 10 + 9.9"), "producer": "'engine-0'",
        "version": "i + 1", "engine": "'engine-0'", "seconds": "0.2",
    },
}  # fmt: skip


def fill_wide(folder: Path, samples: int) -> Path:
    """Write an archive to `folder`/archive and its tables to `folder`/cache, and return the archive's path."""
    archive = folder / "archive"
    fill_archive(str(archive), 1)
    (bundle,) = bundles(ArchiveReader(str(archive), RUN).segments)
    stored = folder / "cache" / FOLDER / digest_of(list(bundle))
    stored.mkdir(parents=True)
    steps = samples // PER_STEP
    counted = ((_SAMPLES, steps * PER_STEP), (_GROUPS, steps * PER_STEP // PER_GROUP), (_STEPS, steps))
    made = {name: (columns, count) for kinds, count in counted for name, columns in kinds.items()}
    names = frozenset[str]().union(*(event_tables_of(f"FROM {table}") for table in TABLES))
    with duckdb.connect(config=SETTINGS) as connection:
        connection.execute("SET enable_progress_bar = false")
        for name in sorted(names):
            table = EVENT_TABLES[name]
            columns, count = made.get(name, ({}, 0))
            connection.register("shape", table.schema.empty_table())
            _write(connection, stored / f"{name}-{table.fingerprint()}.parquet", columns, count)
            connection.unregister("shape")
    return archive / RUN


def _write(connection: duckdb.DuckDBPyConnection, path: Path, columns: Mapping[str, str], count: int) -> None:
    """Write `count` rows with the columns of `shape`. columns: expressions over the row's number `i`; a missing column
    is null.
    """
    kinds = connection.execute("DESCRIBE shape").fetchall()
    selected = ", ".join(f'CAST({columns.get(name, "NULL")} AS {kind}) AS "{name}"' for name, kind, *_ in kinds)
    rows = f"SELECT {selected} FROM (SELECT range AS i FROM range({count}))"
    connection.execute(f"COPY ({rows}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
