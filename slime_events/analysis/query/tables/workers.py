"""Processes that took part."""

from __future__ import annotations

from slime_events.analysis.query.table import FLOAT, INT, POSITION, RUN, TEXT, TIME, Column, Table

WORKERS = Table(
    "workers",
    "A row per process that joined the run.",
    """(SELECT j.*, l."time" AS lost, l.reason AS lost_reason FROM log.worker_joined j
        LEFT JOIN log.worker_lost l ON l.run = j.run AND l.worker = j.worker) t""",
    (
        RUN,
        POSITION,
        Column("worker", TEXT, "t.worker", "its id, new at each start"),
        Column("role", TEXT, "t.role", "conductor, engine, grader, trainer, archivist ..."),
        Column("joined", TIME, 't."time"', "UTC"),
        Column("lost", TIME, "t.lost", "UTC; null where nobody noticed that it was gone"),
        Column("lost_reason", TEXT, "t.lost_reason", "one sentence"),
        Column("pid", INT, "t.pid", "of the process"),
        Column("node", TEXT, "t.node", "the machine"),
        Column("facts", "MAP(VARCHAR, VARCHAR)", "t.facts", "what it said of itself"),
        Column("start_seconds", FLOAT, "list_sum(map_values(t.seconds))", "of starting, s"),
    ),
)
