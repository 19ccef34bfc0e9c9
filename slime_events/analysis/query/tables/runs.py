"""Runs, their events, spans and processes."""

from slime_events.analysis.query.table import BOOL, FLOAT, IN_LOG, INT, JSON, RUN, TEXT, TEXTS, TIME, Column, Table

RUNS = Table(
    "runs",
    "A row per run: the one that was asked for, and with `--with-parent` those that it branched from.",
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
        Column("started", TIME, 't."time"', "UTC"),
        Column("code_version", TEXT, "t.code_version", "of this package"),
        Column("settings", JSON, "t.settings", "what flags and TOML resolved to, a table per component"),
        Column("resumptions", INT, "coalesce(t.resumptions, 0)", "how often it was resumed"),
        Column("finished", TIME, "t.finished", "UTC; null while it is on, and where it has failed or was killed"),
        Column("finish_reason", TEXT, "t.finish_reason", "`all_steps` or `interrupted`; null as `finished` is"),
        Column("failure", TEXT, "t.failure", "why it could not go on, the last time that it could not"),
        Column("parent", TEXT, "t.branched_run", "the run that it branched from; null where it began with its base"),
        Column("parent_location", TEXT, "t.branched_where", "the parent's folder or archive"),
        Column("parent_position", INT, "t.branched_position", "the parent's log up to here is this run's past"),
        Column("parent_version", INT, "t.branched_version", "the weight version that it goes on from"),
        Column("follows", BOOL, "t.branched_follows", "whether it trains on the parent's rollouts"),
    ),
)

EVENTS = Table(
    "events",
    "A row per event, without its fields: those of each type are in `log.<type>`, such as `log.rollout_completed` "
    "([events.md](events.md)).",
    "log.event t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "UTC, by the writer's clock; the order is that of positions"),
        Column("type", TEXT, "t.type", "such as `rollout.completed`"),
        Column("entity", TEXT, "t.entity", "what it is about: a sample, a group, a step, a version, a worker ..."),
        Column("producer", TEXT, "t.producer", "the worker that appended it"),
        Column("id", TEXT, "t.id", "32 hex digits"),
        Column("cause", TEXT, "t.cause", "id of the event that led to it"),
        Column("bytes", INT, "t.bytes", "of the record"),
    ),
)

SPANS = Table(
    "spans",
    "A row per span of the traces, rebuilt from the log with the ids that the live processes gave "
    "([traces.md](traces.md)).",
    "log.span t",
    (
        *IN_LOG,
        Column("name", TEXT, "t.name", "submit, generate, grade, decide, batch, train, publish, activate"),
        Column("trace_id", TEXT, "t.trace_id", "32 hex digits; one trace per group, one per weight version"),
        Column("span_id", TEXT, "t.span_id", "16 hex digits"),
        Column("parent_span_id", TEXT, "t.parent_span_id", "span in the same trace"),
        Column("started", TIME, "t.started", "UTC"),
        Column("ended", TIME, "t.ended", "UTC"),
        Column("seconds", FLOAT, "t.seconds", "s"),
        Column("group_id", TEXT, 't."group"', "the group that it is about"),
        Column("sample", TEXT, "t.sample", "the sample that it is about"),
        Column("version", INT, "t.version", "the weight version that it is about"),
        Column("error", TEXT, "t.error", "why it failed"),
        Column("attributes", JSON, "t.attributes", "as traced"),
        Column("links", TEXTS, "t.links", "`trace/span`: of a batch to the decisions on its groups"),
    ),
)

WORKERS = Table(
    "workers",
    "A row per process that joined the run.",
    """(SELECT j.*, l."time" AS lost, l.reason AS lost_reason FROM log.worker_joined j
        LEFT JOIN log.worker_lost l ON l.run = j.run AND l.worker = j.worker) t""",
    (
        *IN_LOG,
        Column("worker", TEXT, "t.worker", "its id, new at each start"),
        Column("role", TEXT, "t.role", "conductor, engine, grader, trainer, archivist ..."),
        Column("joined", TIME, 't."time"', "UTC"),
        Column("lost", TIME, "t.lost", "UTC; null where nobody noticed that it was gone"),
        Column("lost_reason", TEXT, "t.lost_reason", "one sentence"),
        Column("pid", INT, "t.pid", "of the process"),
        Column("node", TEXT, "t.node", "the machine"),
        Column("details", "MAP(VARCHAR, VARCHAR)", "t.facts", "what it told of itself: device, address ..."),
        Column("start_seconds", FLOAT, "list_sum(map_values(t.seconds))", "of starting, s"),
    ),
)
