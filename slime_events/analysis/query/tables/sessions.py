"""The table of agents' sessions: who made a rollout over the gateway, and how it ended."""

from slime_events.analysis.query.table import FLOAT, IN_LOG, INT, INTS, NUMBERS, TEXT, TEXTS, TIME, Column, Table

SESSIONS = Table(
    "sessions",
    "A row per session of an agent: one attempt at a rollout in a run with `--agents`. Its turns are in `turns`.",
    """(SELECT o.*, o.sample || '.' || o.attempt AS session, s."time" AS sealed, s.reason, s.exit_code, s.reward,
               s.rewards, s.credit, s.discount, s.leaves, s.orphans, a.turns, a.under_way, a.dialects, a.clients,
               a.roots, c.samples, f.message, b.step, b.version
        FROM log.session_opened o
        LEFT JOIN log.session_sealed s ON s.run = o.run AND s.sample = o.sample AND s.attempt = o.attempt
        LEFT JOIN (SELECT run, session, count(ended) AS turns, count(*) - count(ended) AS under_way,
                          list(DISTINCT dialect ORDER BY dialect) FILTER (dialect IS NOT NULL) AS dialects,
                          list(DISTINCT client ORDER BY client) FILTER (client IS NOT NULL) AS clients,
                          list(root ORDER BY "index") FILTER (root IS NOT NULL) AS roots
                   FROM turns WHERE session IS NOT NULL GROUP BY ALL) a
            ON a.run = o.run AND a.session = o.sample || '.' || o.attempt
        LEFT JOIN (SELECT run, coalesce(nullif(rollout, ''), sample) AS requested_sample, attempt,
                          list(sample ORDER BY sample) AS samples
                   FROM log.rollout_completed GROUP BY ALL) c
            ON c.run = o.run AND c.requested_sample = o.sample AND c.attempt = o.attempt AND s.sample IS NOT NULL
        LEFT JOIN log.rollout_failed f ON f.run = o.run AND f.sample = o.sample AND f.attempt = o.attempt
        LEFT JOIN trained b ON b.sample_run = o.run AND b.sample = o.sample AND c.samples IS NOT NULL) t""",
    (
        *IN_LOG,
        Column("session", TEXT, "t.session", "name of the session, `<sample>.<attempt>`"),
        Column("sample", TEXT, "t.sample", "requested sample"),
        Column("group_id", TEXT, 't."group"', "group of the sample"),
        Column("attempt", INT, "t.attempt", "index of the attempt, from 0"),
        Column("source", TEXT, "t.sender", "source whose token opened it"),
        Column("opened", TIME, 't."time"', "time of opening, UTC"),
        Column("sealed", TIME, "t.sealed", "time of sealing, UTC; null while it is open"),
        Column(
            "sealed_by",
            TEXT,
            "t.reason",
            "why it ended: `reward`, `exit`, `time`, `idle`, `over` (its group was decided)",
        ),
        Column("seconds", FLOAT, 'epoch(t.sealed) - epoch(t."time")', "duration [s]"),
        Column("exit_code", INT, "t.exit_code", "exit code of the program, if the harness gave one"),
        Column("reward", FLOAT, "t.reward", "the harness' reward for all paths; null if the run's grader grades"),
        Column(
            "rewards", NUMBERS, "t.rewards", "the harness' rewards for single paths, by the turn that ended the path"
        ),
        Column("dialects", TEXTS, "t.dialects", "APIs of its turns: chat, responses, messages, generate"),
        Column("clients", TEXTS, "t.clients", "names of its agent's HTTP clients (User-Agent)"),
        Column("turns", INT, "coalesce(t.turns, 0)", "number of turns that have ended"),
        Column("under_way", INT, "coalesce(t.under_way, 0)", "number of turns that have begun and not ended"),
        Column("roots", TEXTS, "t.roots", "why its roots began: first, repeat, compaction, rewrite, subagent, drift"),
        Column("leaves", INTS, "t.leaves", "turns that ended a path"),
        Column("orphans", INTS, "t.orphans", "turns whose answers were lost and requested again: not trained on"),
        Column("samples", TEXTS, "t.samples", "its samples, one per path; null if it gave none"),
        Column(
            "credit", TEXT, "t.credit", "rule for the weight of its tokens in training: all, last, leaf, discounted"
        ),
        Column("discount", FLOAT, "t.discount", "factor per turn, if `credit` is `discounted`"),
        Column("failure", TEXT, "t.message", "why it gave no samples"),
        Column("step", INT, "t.step", "step whose batch has its samples"),
        Column("trained_version", INT, "t.version", "weight version made by training on them"),
    ),
)
