"""Evaluations."""

from __future__ import annotations

from slime_events.analysis.query.table import FLOAT, INT, POSITION, RUN, TEXT, TIME, Column, Table

EVALS = Table(
    "evals",
    "A row per evaluation that ended: one data set, one weight version.",
    "log.eval_completed t",
    (
        RUN,
        POSITION,
        Column("time", TIME, 't."time"', "UTC"),
        Column("dataset", TEXT, "t.dataset", "its name"),
        Column("version", INT, "t.version", "the weight version that it is of"),
        Column("mean", FLOAT, "t.mean", "mean reward; failed samples count 0"),
        Column("samples", INT, "t.samples", "how many"),
        Column("failed", INT, "t.failed", "how many of them"),
        Column("mean_length", FLOAT, "t.mean_length", "response tokens"),
        Column("oldest_version", INT, "t.oldest_version", "oldest weights that made a token of it"),
        Column("newest_version", INT, "t.newest_version", "newest weights that made a token of it"),
    ),
)
