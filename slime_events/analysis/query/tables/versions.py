"""Weight versions, where they ran and where they are kept."""

from __future__ import annotations

from slime_events.analysis.query.table import FLOAT, INT, POSITION, RUN, TEXT, TIME, Column, Table

VERSIONS = Table(
    "versions",
    "A row per weight version.",
    """(SELECT p.*, c.step, a.engines, a.activated, a.lag, a.held FROM log.weights_published p
        LEFT JOIN log.step_committed c ON c.run = p.run AND c.version = p.version
        LEFT JOIN (SELECT run, version, count(*) AS engines, min("time") AS activated, max(lag) AS lag,
                          max(seconds) AS held FROM log.weights_activated GROUP BY ALL) a
        ON a.run = p.run AND a.version = p.version) t""",
    (
        RUN,
        POSITION,
        Column("version", INT, "t.version", "0 is what the run starts from"),
        Column("parent", INT, "t.parent", "null for what the run starts from"),
        Column("step", INT, "t.step", "the step that made it"),
        Column("published", TIME, 't."time"', "UTC"),
        Column("kind", TEXT, "t.kind", "`full` or `delta`"),
        Column("bytes", INT, "t.bytes", "of its files"),
        Column("url", TEXT, "t.url", "its folder"),
        Column("digest", TEXT, "t.digest", "of all tensors"),
        Column("engines", INT, "coalesce(t.engines, 0)", "that ran it"),
        Column("activated", TIME, "t.activated", "UTC, by the first of them"),
        Column("lag", FLOAT, "t.lag", "from publication to the last activation, s"),
        Column("held", FLOAT, "t.held", "that an engine did not generate for it, at most, s"),
    ),
)

ACTIVATIONS = Table(
    "activations",
    "A row per weight version and engine that ran it.",
    "log.weights_activated t",
    (
        RUN,
        POSITION,
        Column("time", TIME, 't."time"', "UTC"),
        Column("version", INT, "t.version", "the weight version"),
        Column("engine", TEXT, "t.engine", "the worker"),
        Column("seconds", FLOAT, "t.seconds", "from retraction to going on, s"),
        Column("lag", FLOAT, "t.lag", "from publication, s"),
        Column("resumed", INT, "t.resumed", "rollouts that were under way and went on"),
    ),
)

CHECKPOINTS = Table(
    "checkpoints",
    "A row per checkpoint of the trainer.",
    "log.checkpoint_saved t",
    (
        RUN,
        POSITION,
        Column("time", TIME, 't."time"', "UTC"),
        Column("version", INT, "t.version", "the weights in it"),
        Column("url", TEXT, "t.url", "its folder"),
        Column("weights_digest", TEXT, "t.weights_digest", "sha256, hex"),
        Column("optimizer_digest", TEXT, "t.optimizer_digest", "sha256, hex"),
        Column("seconds", FLOAT, "t.seconds", "of saving, s"),
    ),
)
