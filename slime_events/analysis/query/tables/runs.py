"""Tables on runs, their events, spans and processes."""

from slime_events.analysis.query.table import BOOL, FLOAT, IN_LOG, INT, JSON, RUN, TEXT, TEXTS, TIME, Column, Table

RUNS = Table(
    "runs",
    "A row per run: the queried run, and with `--with-parent` its ancestors.",
    """(SELECT s.*, n.resumptions, x.reason AS failure,
               CASE WHEN f.position > coalesce(n.position, 0) THEN f."time" END AS finished,
               CASE WHEN f.position > coalesce(n.position, 0) THEN f.reason END AS finish_reason
        FROM log.run_started s
        LEFT JOIN (SELECT run, count(*) AS resumptions, max(position) AS position FROM log.run_resumed GROUP BY run) n
            USING (run)
        LEFT JOIN (SELECT run, last("time" ORDER BY position) AS "time", last(reason ORDER BY position) AS reason,
                          max(position) AS position
                   FROM log.run_finished GROUP BY run) f USING (run)
        LEFT JOIN (SELECT run, last(reason ORDER BY position) AS reason FROM log.run_failed GROUP BY run) x USING (run)
       ) t""",
    (
        RUN,
        Column("started", TIME, 't."time"', "time of the start, UTC"),
        Column("code_version", TEXT, "t.code_version", "version of this package"),
        Column("settings", JSON, "t.settings", "settings from flags and TOML, a table per component"),
        Column("resumptions", INT, "coalesce(t.resumptions, 0)", "number of resumptions"),
        Column(
            "finished", TIME, "t.finished", "time of the end, UTC; null while it runs, and if it failed or was killed"
        ),
        Column("finish_reason", TEXT, "t.finish_reason", "`all_steps` or `interrupted`; null if `finished` is null"),
        Column("failure", TEXT, "t.failure", "why it last failed; null if it never did"),
        Column(
            "parent",
            TEXT,
            "t.branched_run",
            "run that it branched off from; null if it started from its base checkpoint",
        ),
        Column("parent_location", TEXT, "t.branched_where", "folder or archive of the parent"),
        Column(
            "parent_position", INT, "t.branched_position", "position up to which the parent's log is this run's past"
        ),
        Column("parent_version", INT, "t.branched_version", "weight version at which it branched off"),
        Column("follows", BOOL, "t.branched_follows", "whether it trains on the parent's rollouts"),
    ),
)

EVENTS = Table(
    "events",
    "A row per event, without its fields. Those are in `log.<type>`, such as `log.rollout_completed` "
    "([events.md](events.md)).",
    "log.event t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "time by the writer's clock, UTC; positions give the order"),
        Column("type", TEXT, "t.type", "type, such as `rollout.completed`"),
        Column("entity", TEXT, "t.entity", "id of its subject: a sample, a group, a step, a version, a worker ..."),
        Column("producer", TEXT, "t.producer", "worker that appended it"),
        Column("id", TEXT, "t.id", "id of the event, 32 hex digits"),
        Column("cause", TEXT, "t.cause", "id of the event that caused it"),
        Column("bytes", INT, "t.bytes", "size of the record [bytes]"),
    ),
)

SPANS = Table(
    "spans",
    "A row per span of the [traces](metrics.md#traces), computed from the log, with the ids that a collector gets.",
    "log.span t",
    (
        *IN_LOG,
        Column("name", TEXT, "t.name", "name, such as submit, generate, turn, tool, grade, decide, train"),
        Column(
            "trace_id", TEXT, "t.trace_id", "id of the trace, 32 hex digits; a trace per group and per weight version"
        ),
        Column("span_id", TEXT, "t.span_id", "id of the span, 16 hex digits"),
        Column("parent_span_id", TEXT, "t.parent_span_id", "id of the parent span in the same trace"),
        Column("started", TIME, "t.started", "time of the start, UTC"),
        Column("ended", TIME, "t.ended", "time of the end, UTC"),
        Column("seconds", FLOAT, "t.seconds", "duration [s]"),
        Column("group_id", TEXT, 't."group"', "its group"),
        Column("sample", TEXT, "t.sample", "its sample"),
        Column("version", INT, "t.version", "its weight version"),
        Column("error", TEXT, "t.error", "why it failed"),
        Column("attributes", JSON, "t.attributes", "attributes of the span"),
        Column(
            "links",
            TEXTS,
            "t.links",
            "`trace/span`: from a batch to its groups' decisions, from a turn to its generation",
        ),
    ),
)

WORKERS = Table(
    "workers",
    "A row per process that joined the run.",
    """(SELECT j.*, l."time" AS lost, l.reason AS lost_reason FROM log.worker_joined j
        LEFT JOIN log.worker_lost l ON l.run = j.run AND l.worker = j.worker) t""",
    (
        *IN_LOG,
        Column("worker", TEXT, "t.worker", "id of the worker, new at each start"),
        Column("role", TEXT, "t.role", "role: conductor, engine, grader, trainer, archivist ..."),
        Column("joined", TIME, 't."time"', "time of joining, UTC"),
        Column("lost", TIME, "t.lost", "time at which its loss was noticed, UTC; null if it was not"),
        Column("lost_reason", TEXT, "t.lost_reason", "reason of the loss, one sentence"),
        Column("pid", INT, "t.pid", "process id"),
        Column("node", TEXT, "t.node", "host of the process"),
        Column("details", "MAP(VARCHAR, VARCHAR)", "t.facts", "facts about it: device, address ..."),
        Column("start_seconds", FLOAT, "list_sum(map_values(t.seconds))", "duration of the startup [s]"),
    ),
)
