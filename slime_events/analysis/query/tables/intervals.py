"""The table of a run's timeline: what each worker did, and what each rollout waited for, from when to when."""

from slime_events.analysis.query.table import FLOAT, INT, RUN, TEXT, TIME, Column, Table


def _ago(seconds: str) -> str:
    """Return the time of the event `t`, less some seconds."""
    return f't."time" - to_microseconds(CAST(round(1e6 * coalesce({seconds}, 0)) AS BIGINT))'


_DONE = f"""(SELECT t.run, t.position, t.engine AS worker, t.sample, t."group", t.spans, t.length, q.maker,
            q.min_version, q."time" AS requested, t."time" AS ended,
            greatest(q."time", {_ago("t.timings_generating + t.timings_updating")}) AS taken
        FROM log.rollout_completed t
        JOIN log.rollout_requested q ON q.run = t.run AND q.attempt = t.attempt
            AND q.sample = coalesce(nullif(t.rollout, ''), t.sample))"""
_LOADED = """(SELECT run, engine, version, min("time") AS loaded FROM log.weights_activated GROUP BY ALL)"""
_BEGUN = f"""(SELECT t.* EXCLUDE (taken),
            CASE WHEN a.loaded > t.taken AND a.loaded < t.ended THEN a.loaded ELSE t.taken END AS started
        FROM {_DONE} t LEFT JOIN {_LOADED} a
            ON a.run = t.run AND a.engine = t.worker AND a.version = coalesce(t.spans[1].version, t.min_version)
        WHERE t.maker = 'engine')"""
"""Rollouts of engines. Generation begins when the engine has both the request and its weights."""
_PLAIN = f"""(SELECT * FROM {_BEGUN} t ANTI JOIN
            (SELECT run, sample FROM log.turn_recorded WHERE agent_dialect IS NULL) w
            ON w.run = t.run AND w.sample = t.sample)"""
_CUT = f"""(SELECT t.run, t.position, t.worker, t.sample, t."group", t.version, t.number, t.ended AS last,
            CASE WHEN t.number = 1 THEN t.started
                 WHEN a.loaded > t.started AND a.loaded < t.ended THEN a.loaded
                 ELSE t.started + to_microseconds(
                     (epoch_us(t.ended) - epoch_us(t.started)) * t.first // greatest(t.length, 1)) END AS begun
        FROM (SELECT *, unnest(range(1, len(spans) + 1)) AS number, unnest(spans).version AS version,
                     unnest(spans)."start" AS first
              FROM {_PLAIN} p WHERE len(spans) > 1) t
        LEFT JOIN {_LOADED} a ON a.run = t.run AND a.engine = t.worker AND a.version = t.version)"""
"""Rollouts whose weights changed, a row per weight version."""

_SOURCE = f"""(
        SELECT run, position, 'waiting' AS role, '' AS worker, 'queue' AS work, requested AS started,
               started AS ended, sample, "group", NULL AS step, min_version AS version FROM {_BEGUN}
        UNION ALL
        SELECT run, position, 'engine', worker, 'generate', started, ended, sample, "group", NULL,
               coalesce(spans[1].version, min_version) FROM {_PLAIN} WHERE len(spans) < 2
        UNION ALL
        SELECT run, position, 'engine', worker, 'generate', begun,
               greatest(begun, coalesce(lead(begun) OVER (PARTITION BY run, sample ORDER BY number), last)), sample,
               "group", NULL, version FROM {_CUT}
        UNION ALL
        SELECT run, position, 'engine', engine, CASE role WHEN 'tool' THEN 'tool' ELSE 'generate' END,
               {_ago("t.seconds")}, "time", sample, regexp_replace(sample, '-s[0-9]+$', ''), NULL,
               list_max(list_transform(spans, lambda x: x.version))
        FROM log.turn_recorded t WHERE agent_dialect IS NULL
        UNION ALL
        SELECT run, position, maker, maker, 'rollout', requested, ended, sample, "group", NULL,
               list_max(list_transform(spans, lambda x: x.version)) FROM {_DONE} WHERE maker <> 'engine'
        UNION ALL
        SELECT t.run, t.position, 'engine', t.engine, t.outcome, q."time", t."time", t.sample, q."group", NULL,
               q.min_version
        FROM (SELECT run, position, engine, sample, attempt, "time", 'suspended' AS outcome FROM log.rollout_suspended
              UNION ALL
              SELECT run, position, engine, sample, attempt, "time", 'failed' FROM log.rollout_failed) t
        JOIN log.rollout_requested q ON q.run = t.run AND q.sample = t.sample AND q.attempt = t.attempt
        UNION ALL
        SELECT run, position, 'engine', engine, 'load', {_ago("t.seconds")}, "time", NULL, NULL, NULL, version
        FROM log.weights_activated t
        UNION ALL
        SELECT run, position, 'grader', producer, 'grade', {_ago("t.seconds")}, "time", sample, "group", NULL, NULL
        FROM (SELECT run, position, producer, "time", seconds, sample, "group" FROM log.reward_assigned
              UNION ALL
              SELECT run, position, producer, "time", seconds, sample, "group" FROM log.reward_failed) t
        UNION ALL
        SELECT t.run, t.position, 'waiting', '', 'reward', c."time",
               greatest(c."time", {_ago("t.seconds")}), t.sample, t."group", NULL, NULL
        FROM log.reward_assigned t JOIN log.rollout_completed c ON c.run = t.run AND c.sample = t.sample
        UNION ALL
        SELECT v.run, v.position, 'waiting', '', 'verdict', least(r.graded, v."time"), v."time", NULL, v."group",
               NULL, NULL
        FROM (SELECT run, position, "time", "group" FROM log.group_accepted
              UNION ALL SELECT run, position, "time", "group" FROM log.group_rejected) v
        JOIN (SELECT run, "group", max("time") AS graded FROM log.reward_assigned GROUP BY ALL) r
            ON r.run = v.run AND r."group" = v."group"
        UNION ALL
        SELECT b.run, b.position, 'waiting', '', 'batch', least(v."time", b."time"), b."time", NULL, b."group", b.step,
               NULL
        FROM (SELECT run, position, "time", step, unnest(groups) AS "group" FROM log.batch_sealed) b
        JOIN log.group_accepted v ON v.run = b.run AND v."group" = b."group"
        UNION ALL
        SELECT run, position, 'trainer', producer, 'train', {_ago("list_sum(map_values(t.seconds))")}, "time", NULL,
               NULL, step, version
        FROM log.step_committed t
        UNION ALL
        SELECT run, position, 'trainer', producer, 'checkpoint', {_ago("t.seconds")}, "time", NULL, NULL, NULL, version
        FROM log.checkpoint_saved t
        UNION ALL
        SELECT run, position, 'archivist', producer, 'archive', "time", "time", NULL, NULL, NULL, NULL
        FROM log.archive_sealed
    ) t"""

INTERVALS = Table(
    "intervals",
    "A row per interval of the timeline: work of a worker, or a wait of a rollout or group. Times are those of the "
    "events that end them, less the seconds that these report.",
    _SOURCE,
    (
        RUN,
        Column("position", INT, "t.position", "position of the event that ends it"),
        Column(
            "role",
            TEXT,
            "t.role",
            "`engine`, `grader`, `trainer`, `archivist`; `agent`, `function`, `recorded` or `outside` for rollouts "
            "that no engine made; `waiting`",
        ),
        Column("worker", TEXT, "t.worker", "worker that did it; empty for a wait"),
        Column(
            "work",
            TEXT,
            "t.work",
            "of engines `generate`, `tool`, `load` (weights), `suspended`, `failed` (both from the request on: the log "
            "does not have the beginning); `rollout`, `grade`, `train`, `checkpoint`, `archive` (a moment); waits for "
            "an engine or its weights (`queue`), a grader (`reward`), the filter (`verdict`), a `batch`",
        ),
        Column("started", TIME, "t.started", "time of the start, UTC"),
        Column("ended", TIME, "t.ended", "time of the end, UTC"),
        Column("seconds", FLOAT, "epoch(t.ended) - epoch(t.started)", "duration [s]"),
        Column("sample", TEXT, "t.sample", "its sample"),
        Column("group_id", TEXT, 't."group"', "its group"),
        Column("step", INT, "t.step", "its step"),
        Column(
            "version",
            INT,
            "t.version",
            "weights that generate, are loaded, made by training or saved; of a wait for an engine, the oldest that "
            "may generate. If a rollout has several, the change is at the engine's load, or by their share of tokens "
            "if that is unknown",
        ),
    ),
)
