"""Sessions of agents: who made a rollout over the gateway, and how it ended."""

from slime_events.analysis.query.table import FLOAT, IN_LOG, INT, INTS, NUMBERS, TEXT, TEXTS, TIME, Column, Table

SESSIONS = Table(
    "sessions",
    "A row per session of an agent: one try at a rollout, of a run with `--agents`. Its turns are in `turns`.",
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
        LEFT JOIN (SELECT run, coalesce(nullif(rollout, ''), sample) AS asked, attempt,
                          list(sample ORDER BY sample) AS samples
                   FROM log.rollout_completed GROUP BY ALL) c
            ON c.run = o.run AND c.asked = o.sample AND c.attempt = o.attempt AND s.sample IS NOT NULL
        LEFT JOIN log.rollout_failed f ON f.run = o.run AND f.sample = o.sample AND f.attempt = o.attempt
        LEFT JOIN trained b ON b.sample_run = o.run AND b.sample = o.sample AND c.samples IS NOT NULL) t""",
    (
        *IN_LOG,
        Column("session", TEXT, "t.session", "its name, `<sample>.<attempt>`"),
        Column("sample", TEXT, "t.sample", "the sample that was asked for"),
        Column("group_id", TEXT, 't."group"', "its group"),
        Column("attempt", INT, "t.attempt", "from 0"),
        Column("source", TEXT, "t.sender", "whose token the harness had that opened it"),
        Column("opened", TIME, 't."time"', "UTC"),
        Column("sealed", TIME, "t.sealed", "UTC; null while it is open"),
        Column("sealed_by", TEXT, "t.reason", "`reward`, `exit`, `time`, `idle`, `over` (its group was decided)"),
        Column("seconds", FLOAT, 'epoch(t.sealed) - epoch(t."time")', "from its opening to its end, s"),
        Column("exit_code", INT, "t.exit_code", "of the program, where its harness gave one"),
        Column("reward", FLOAT, "t.reward", "of its harness, for all its paths; null where the run's grader grades"),
        Column("rewards", NUMBERS, "t.rewards", "of its harness for single paths, by the turn that ended them"),
        Column("dialects", TEXTS, "t.dialects", "APIs of its turns: chat, responses, messages, generate"),
        Column("clients", TEXTS, "t.clients", "what its agent's HTTP clients call themselves (User-Agent)"),
        Column("turns", INT, "coalesce(t.turns, 0)", "that have ended"),
        Column("under_way", INT, "coalesce(t.under_way, 0)", "turns that have begun and have not ended"),
        Column("roots", TEXTS, "t.roots", "why its roots began: first, repeat, compaction, rewrite, subagent, drift"),
        Column("leaves", INTS, "t.leaves", "turns that ended a path"),
        Column("orphans", INTS, "t.orphans", "turns whose answers were lost and asked for again: not trained on"),
        Column("samples", TEXTS, "t.samples", "that came of it, a path each; null where none did"),
        Column("credit", TEXT, "t.credit", "the rule by which its tokens are trained: all, last, leaf, discounted"),
        Column("discount", FLOAT, "t.discount", "of each turn, where the rule is `discounted`"),
        Column("failure", TEXT, "t.message", "why nothing came of it"),
        Column("step", INT, "t.step", "the step whose batch has its samples"),
        Column("trained_version", INT, "t.version", "the weight version that was made by training on them"),
    ),
)
