"""What graders said."""

from __future__ import annotations

from slime_events.analysis.query.table import FLOAT, JSON, POSITION, RUN, TEXT, TIME, Column, Table

REWARDS = Table(
    "rewards",
    "A row per sample that was graded, or that could not be.",
    """(SELECT run, position, "time", sample, "group", value, grader, grader_digest, detail, seconds,
               NULL AS kind, NULL AS message FROM log.reward_assigned
        UNION ALL
        SELECT run, position, "time", sample, "group", NULL, grader, grader_digest, NULL, seconds, kind, message
        FROM log.reward_failed) t""",
    (
        RUN,
        POSITION,
        Column("time", TIME, 't."time"', "UTC"),
        Column("sample", TEXT, "t.sample", "the sample"),
        Column("group_id", TEXT, 't."group"', "its group"),
        Column("reward", FLOAT, "t.value", "what is trained on; null where grading failed"),
        Column("grader", TEXT, "t.grader", "name or path"),
        Column("grader_digest", TEXT, "t.grader_digest", "sha256 of its source, hex"),
        Column("detail", JSON, "t.detail", "the grader's dict, where it gave one"),
        Column("seconds", FLOAT, "t.seconds", "of grading, s"),
        Column("failure", TEXT, "t.kind", "why there is no reward: raised, timeout, not_a_number ..."),
        Column("message", TEXT, "t.message", "one sentence on the failure"),
    ),
)
