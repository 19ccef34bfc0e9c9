"""Measure SQL over an archive of 10^6 events, for the first time and with cached tables.

The archive of 4,700 steps is synthetic. The queries are for all samples, all groups, and the tokens of one sample. The
start of a process is not included.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.figure import Better, Figure
from benchmarks.kept_log import RUN, fill_archive
from benchmarks.long_log import PER_STEP
from slime_events.analysis.query import OpenTables, open_tables

EVENTS = 1_000_000
SAMPLES = "SELECT newest_version // 1000, count(*), avg(reward), avg(tokens) FROM samples GROUP BY ALL"
GROUPS = "SELECT verdict, count(*), avg(pass_rate) FROM groups GROUP BY ALL"
TOKENS = "SELECT avg(log_prob) FROM tokens WHERE sample = 'train-0-0000100-s3'"
AGAIN_S = 5.0


def measure(events: int = EVENTS) -> list[Figure]:
    """Return the seconds of each query with its answer, without making the archive and starting Python."""
    with tempfile.TemporaryDirectory() as temporary:
        fill_archive(f"{temporary}/archive", max(1, events // PER_STEP))
        with open_tables(f"{temporary}/archive/{RUN}", cache=Path(temporary, "tables")) as tables:
            return [
                *_both(tables, "samples", SAMPLES),
                *_both(tables, "groups", GROUPS),
                *_both(tables, "tokens of a sample", TOKENS),
            ]


def _both(tables: OpenTables, name: str, sql: str) -> list[Figure]:
    first, again = _seconds(tables, sql), _seconds(tables, sql)
    note = "includes making the tables"
    return [
        Figure(name=f"query {name}, first", value=first, unit="s", better=Better.LOWER, note=note),
        Figure(name=f"query {name}, again", value=again, unit="s", target=AGAIN_S, better=Better.LOWER),
    ]


def _seconds(tables: OpenTables, sql: str) -> float:
    begun = time.perf_counter()
    tables.sql(sql).rows()
    return time.perf_counter() - begun
