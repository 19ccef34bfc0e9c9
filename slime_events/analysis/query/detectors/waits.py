"""A detector on the trainer's waits for a batch."""

from __future__ import annotations

from slime_events.analysis.query.detectors.detector import NOW, Detector, Parameter, Severity
from slime_events.analysis.query.table import FLOAT, INT, TEXT, TEXTS, Column

IDLE_TRAINER = Detector(
    "idle_trainer",
    "The trainer waits for a batch far longer than usual, or did so for its newest one.",
    Severity.ALARM,
    (
        Parameter("min_seconds", 60, "shortest wait that is a finding [s]"),
        Parameter("times", 5, "the same as a multiple of the median of the earlier waits"),
        Parameter("assumed_seconds", 120, "usual wait before three waits are known [s]"),
        Parameter(NOW, 0, "UTC at which a wait still lasts [s since 1970]; 0: time of the newest row"),
    ),
    ("steps", "activations", "evals", "rewards", "runs"),
    # A wait begins with the last thing that the trainer could not be blamed for: its own commit, a new engine, an
    # evaluation that used the engines.
    f"""commits AS MATERIALIZED (
        SELECT run, step, commit_position AS position, committed AS "time" FROM steps WHERE committed IS NOT NULL
    ),
    begins AS MATERIALIZED (
        SELECT run, position, "time" FROM commits
        UNION ALL SELECT run, position, "time" FROM activations
        UNION ALL SELECT run, position, "time" FROM evals
        UNION ALL SELECT run, position, "time" FROM rewards WHERE starts_with(group_id, 'eval-')
    ),
    last_commits AS (SELECT run, max(step) AS step FROM commits GROUP BY run),
    ends AS (
        SELECT run, step, position, sealed AS "time", FALSE AS lasts FROM steps WHERE sealed IS NOT NULL
        UNION ALL
        SELECT r.run, coalesce(c.step + 1, 0), 9223372036854775807,
               CASE WHEN {NOW} > 0 THEN make_timestamp(({NOW} * 1000000)::BIGINT)
                    ELSE (SELECT max(n."time") FROM (SELECT run, "time" FROM begins UNION ALL
                                                     SELECT run, "time" FROM rewards) n WHERE n.run = r.run) END,
               TRUE
        FROM runs r LEFT JOIN last_commits c ON c.run = r.run
        WHERE r.finished IS NULL
          AND NOT EXISTS (FROM steps s WHERE s.run = r.run AND s.sealed IS NOT NULL AND s.step > coalesce(c.step, -1))
          AND (r.resumptions > 0 OR coalesce(c.step + 1, 0)
               < coalesce(TRY_CAST(r.settings ->> '$.rollout.num_rollout' AS BIGINT), 9223372036854775807))
    ),
    waits AS (
        SELECT e.run, e.step, e.lasts, b."time" AS since, epoch(e."time") - epoch(b."time") AS seconds
        FROM ends e ASOF JOIN begins b ON b.run = e.run AND b.position < e.position
        LEFT JOIN commits c ON c.run = e.run AND c.step = e.step - 1
        WHERE e.step = 0 OR c.position < e.position
    ),
    newest AS (SELECT * FROM waits QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC) = 1),
    usual AS (
        SELECT n.run, count(w.step) AS known, median(w.seconds) AS seconds
        FROM newest n LEFT JOIN waits w ON w.run = n.run AND w.step < n.step GROUP BY n.run
    )""",
    """newest t JOIN usual u ON u.run = t.run
    WHERE t.seconds >= min_seconds
      AND t.seconds >= times * CASE WHEN u.known >= 3 THEN u.seconds ELSE assumed_seconds END""",
    (
        Column("step", INT, "t.step", "step whose batch it waited for"),
        Column("wait", TEXT, "CASE WHEN t.lasts THEN 'lasts' ELSE 'over' END", "`lasts` or `over`"),
        Column("since", TEXT, "strftime(t.since, '%Y-%m-%d %H:%M:%S')", "begin of the wait, UTC"),
        Column("seconds", FLOAT, "t.seconds", "the wait [s]"),
        Column("usual_seconds", FLOAT, "u.seconds", "median of the earlier waits [s]; null without any"),
        Column("samples", TEXTS, "[]", "empty: it is about steps"),
    ),
)
