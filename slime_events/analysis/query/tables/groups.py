"""Groups: all samples of one prompt, and the verdict on them."""

from slime_events.analysis.query.table import FLOAT, INT, NUMBERS, RUN, TEXT, TIME, Column, Table
from slime_events.analysis.query.tables.samples import COMMITS, VERDICTS, about_samples

_BATCHES = about_samples(
    '(SELECT run, depth, position, step, unnest(groups) AS "group" FROM log.batch_sealed)', '"group"'
)

GROUPS = Table(
    "groups",
    "A row per group, from its prompt to the verdict on it and the step that trained it.",
    f"""log.prompt_submitted t
    LEFT JOIN (SELECT run, "group", count(DISTINCT sample) AS requested FROM log.rollout_requested GROUP BY ALL) q
        ON q.run = t.run AND q."group" = t."group"
    LEFT JOIN (SELECT run, "group", count(*) AS completed, avg(length) AS tokens, count(DISTINCT text) AS answers,
                      count(*) FILTER (stop = 'length') AS cut,
                      min(list_min(list_transform(spans, lambda x: x.version))) AS oldest
               FROM log.rollout_completed GROUP BY ALL) c
        ON c.run = t.run AND c."group" = t."group"
    LEFT JOIN (SELECT run, group_id, avg(reward) AS mean, stddev_samp(reward) AS std, min(reward) AS low,
                      max(reward) AS high, avg((reward = 1)::INTEGER) AS passed, count(failure) AS failed
               FROM rewards GROUP BY ALL) r
        ON r.run = t.run AND r.group_id = t."group"
    LEFT JOIN {VERDICTS} v ON v.of_run = t.run AND v."group" = t."group"
    LEFT JOIN {_BATCHES} b ON b.of_run = t.run AND b."group" = t."group"
    LEFT JOIN {COMMITS} k ON k.run = b.run AND k.step = b.step""",
    (
        RUN,
        Column("position", INT, "t.position", "of its prompt"),
        Column("group_id", TEXT, 't."group"', "its id"),
        Column("purpose", TEXT, "t.purpose", "`train` or `eval`"),
        Column("dataset", TEXT, "t.dataset", "of its prompt"),
        Column("source", TEXT, "t.source_path", "of its prompt: file URL, or `inbox`"),
        Column("source_row", INT, "t.source_row", "of its prompt: the same in every epoch"),
        Column("epoch", INT, "t.source_epoch", "of its prompt"),
        Column("label", TEXT, "t.label", "the right answer, where there is one"),
        Column("submitted", TIME, 't."time"', "UTC"),
        Column("samples", INT, "coalesce(q.requested, 0)", "asked for, how many"),
        Column("completed", INT, "coalesce(c.completed, 0)", "of them, how many"),
        Column("truncated", INT, "coalesce(c.cut, 0)", "completed by the length limit, how many"),
        Column("distinct_responses", INT, "c.answers", "different response texts"),
        Column("tokens_mean", FLOAT, "c.tokens", "response tokens, mean"),
        Column("oldest_version", INT, "c.oldest", "oldest weights in it"),
        Column("reward_mean", FLOAT, "r.mean", "over the graded samples"),
        Column("reward_std", FLOAT, "r.std", "unbiased (n - 1); null for one sample"),
        Column("reward_min", FLOAT, "r.low", "lowest"),
        Column("reward_max", FLOAT, "r.high", "highest"),
        Column("pass_rate", FLOAT, "r.passed", "share of graded samples whose reward is exactly 1"),
        Column("grading_failures", INT, "coalesce(r.failed, 0)", "samples whose grading failed"),
        Column("verdict", TEXT, "v.verdict", "`accepted`, `rejected`; null before, and for evaluations"),
        Column("cause", TEXT, "v.cause", "of a rejection: filter, reward_failed, rollout_failed, stale ..."),
        Column("reason", TEXT, "v.reason", "of the filter, or what failed"),
        Column("filter", TEXT, "v.filter", "its path, `none` where there is none"),
        Column("figures", NUMBERS, "v.figures", "what the verdict is based on"),
        Column("decided", TIME, 'v."time"', "UTC"),
        Column("seconds", FLOAT, 'epoch(v."time") - epoch(t."time")', "from prompt to verdict, s"),
        Column("step", INT, "b.step", "the step whose batch it is in"),
        Column("trained_version", INT, "k.version", "the weight version that was made by training on it"),
    ),
)
