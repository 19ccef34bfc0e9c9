"""Prompts, the groups of samples that answer them, their rewards and verdicts, and what was trained of them."""

from slime_events.analysis.query.table import (
    BOOL,
    FLOAT,
    IN_LOG,
    INT,
    INTS,
    JSON,
    NUMBERS,
    RUN,
    TEXT,
    TIME,
    Column,
    Table,
)

_SAMPLE = Column("sample", TEXT, "t.sample", "the sample")

PROMPTS = Table(
    "prompts",
    "A row per prompt that was drawn or sent, which is one per group: an evaluation's questions too.",
    "log.prompt_submitted t",
    (
        *IN_LOG,
        Column("group_id", TEXT, 't."group"', "the group of samples that answer it"),
        Column("submitted", TIME, 't."time"', "UTC"),
        Column("purpose", TEXT, "t.purpose", "`train` or `eval`"),
        Column("dataset", TEXT, "t.dataset", "`train`, `inbox`, or the evaluation's name"),
        Column("version", INT, "t.version", "the weight version that an evaluation is of"),
        Column("source", TEXT, "t.source_path", "file URL, or `inbox`"),
        Column("source_row", INT, "t.source_row", "0-based usable row of the file: the same in every epoch"),
        Column("source_line", INT, "t.source_line", "1-based line of the file"),
        Column("epoch", INT, "t.source_epoch", "pass over the source, from 0"),
        Column("source_offset", INT, "t.source_offset", "prompts drawn from this source before it"),
        Column("key", TEXT, "nullif(t.source_key, '')", "the sender's idempotency key, for the inbox"),
        Column("text", TEXT, "t.text", "as the model sees it, after the chat template"),
        Column("label", TEXT, "t.label", "the right answer, where there is one"),
        Column("tokens", INT, "t.tokens", "how many"),
        Column("messages", JSON, "t.messages", "the chat that it was made from"),
        Column("metadata", JSON, "t.metadata", "as given"),
        Column("tools", JSON, "t.tools", "as given"),
    ),
)

REJECTED_LINES = Table(
    "rejected_lines",
    "A row per line of a prompt file that could not be used.",
    "log.prompt_rejected t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "UTC"),
        Column("dataset", TEXT, "t.dataset", "`train`, or the evaluation's name"),
        Column("source", TEXT, "t.source_path", "file URL"),
        Column("source_line", INT, "t.source_line", "1-based"),
        Column("epoch", INT, "t.source_epoch", "from 0"),
        Column("reason", TEXT, "t.reason", "one sentence"),
    ),
)

REWARDS = Table(
    "rewards",
    "A row per sample that was graded, or that could not be.",
    """(SELECT run, position, "time", sample, "group", value, grader, grader_digest, detail, seconds,
               NULL AS kind, NULL AS message FROM log.reward_assigned
        UNION ALL
        SELECT run, position, "time", sample, "group", NULL, grader, grader_digest, NULL, seconds, kind, message
        FROM log.reward_failed) t""",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "UTC"),
        _SAMPLE,
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

_SPAN_VERSIONS = "list_transform(t.spans, lambda x: x.version)"


def _source_columns(prompt: str) -> tuple[Column, ...]:
    """Where a prompt came from. prompt: what `log.prompt_submitted` is called."""
    return (
        Column("dataset", TEXT, f"{prompt}.dataset", "of its prompt"),
        Column("source", TEXT, f"{prompt}.source_path", "of its prompt: file URL, or `inbox`"),
        Column("source_row", INT, f"{prompt}.source_row", "of its prompt: the same in every epoch"),
        Column("epoch", INT, f"{prompt}.source_epoch", "of its prompt"),
        Column("label", TEXT, f"{prompt}.label", "the right answer, where there is one"),
    )


def _about_samples(source: str, entity: str) -> str:
    """`source` (an event table, or a SELECT in brackets) with `of_run`, one row for each `entity`."""
    return f"""(SELECT w.*, coalesce(o.of_run, w.run) AS of_run FROM {source} w LEFT JOIN (
            SELECT run, CASE WHEN branched_follows THEN branched_run ELSE run END AS of_run FROM log.run_started
        ) o ON o.run = w.run
        QUALIFY row_number() OVER (PARTITION BY coalesce(o.of_run, w.run), w.{entity} ORDER BY w.depth) = 1)"""


_VERDICTS = _about_samples(
    """(SELECT run, depth, position, "time", "group", 'accepted' AS verdict, NULL AS cause, reason, filter, figures
            FROM log.group_accepted
            UNION ALL
            SELECT run, depth, position, "time", "group", 'rejected', cause, reason, filter, figures
            FROM log.group_rejected)""",
    '"group"',
)

_COMMITS = """(SELECT run, step, version, "time" FROM log.step_committed)"""

TRAINED = Table(
    "trained",
    "A row per sample of a sealed batch: what a step is trained on, in order.",
    f"""(SELECT u.*, c.version, c."time" AS committed FROM {
        _about_samples(
            '''(
            SELECT run, depth, position, "time", step, unnest(samples) AS sample, unnest(rewards) AS reward,
                   unnest(raw_rewards) AS raw_reward, unnest(range(len(samples))) AS batch_index, removed
            FROM log.batch_sealed)''',
            "sample",
        )
    } u
        LEFT JOIN {_COMMITS} c ON c.run = u.run AND c.step = u.step) t""",
    (
        *IN_LOG,
        Column("step", INT, "t.step", "the step that trains on it"),
        Column("batch_index", INT, "t.batch_index", "in the batch, from 0"),
        _SAMPLE,
        Column("sample_run", TEXT, "t.of_run", "the run that made it: another one for a run that follows"),
        Column("reward", FLOAT, "t.raw_reward", "as graded"),
        Column("normalised_reward", FLOAT, "t.reward", "normalised over its group: what advantages are made of"),
        Column("removed", BOOL, "list_contains(t.removed, t.sample)", "not trained on: --rollout-sample-filter-path"),
        Column("sealed", TIME, 't."time"', "UTC"),
        Column("committed", TIME, "t.committed", "UTC; null where the step was not committed"),
        Column("version", INT, "t.version", "the weight version that the step made; null where it was not committed"),
    ),
)

_REQUESTS = """(SELECT run, sample, min(position) AS position, min("time") AS requested, count(*) AS attempts,
               max(attempt) AS attempt, first("group") AS "group", first("index") AS "index",
               first(purpose) AS purpose, first(seed) AS seed, first(prompt) AS prompt
        FROM log.rollout_requested GROUP BY run, sample)"""
_FAILURES = """(SELECT run, sample, max(attempt) AS attempt, arg_max(kind, attempt) AS kind
        FROM log.rollout_failed GROUP BY run, sample)"""
_SUSPENSIONS = """(SELECT run, sample, max(attempt) AS attempt, count(*) AS suspensions
        FROM log.rollout_suspended GROUP BY run, sample)"""

_SOURCE = f"""(SELECT coalesce(q.run, c.run) AS run, coalesce(q.position, c.position) AS position,
            coalesce(q.sample, c.sample) AS sample, coalesce(q."group", c."group") AS "group", q."index",
            coalesce(nullif(c.rollout, ''), c.sample, q.sample) AS rollout, coalesce(q.purpose, 'train') AS purpose,
            q.requested, q.attempts, q.attempt, q.seed, q.prompt AS asked, c."time" AS completed,
            c.* EXCLUDE (run, position, "time", producer, sample, "group", attempt, rollout, prompt, depth),
            c.prompt AS own_prompt
        FROM {_REQUESTS} q FULL JOIN log.rollout_completed c ON c.run = q.run AND c.sample = q.sample) t
    LEFT JOIN log.prompt_submitted p ON p.run = t.run AND p."group" = t."group"
    LEFT JOIN {_FAILURES} f ON f.run = t.run AND f.sample = t.sample AND f.attempt = t.attempt
    LEFT JOIN {_SUSPENSIONS} s ON s.run = t.run AND s.sample = t.sample
    LEFT JOIN rewards r ON r.run = t.run AND r.sample = t.sample
    LEFT JOIN {_VERDICTS} v ON v.of_run = t.run AND v."group" = t."group"
    LEFT JOIN trained b ON b.sample_run = t.run AND b.sample = t.sample"""

_STALENESS = "versions between the oldest weights in it and those that were trained"
_STATUS = """CASE WHEN t.completed IS NOT NULL THEN 'completed' WHEN f.sample IS NOT NULL THEN 'failed'
               WHEN s.attempt = t.attempt THEN 'suspended' ELSE 'requested' END"""

SAMPLES = Table(
    "samples",
    "A row per sample, from its request to the weight version that it helped to make.",
    _SOURCE,
    (
        RUN,
        Column("position", INT, "t.position", "of its first request"),
        Column("sample", TEXT, "t.sample", "`<group>-s<index>`"),
        Column("group_id", TEXT, 't."group"', "its group"),
        Column("index", INT, 't."index"', "in its group; null for further samples of one rollout"),
        Column("rollout", TEXT, "t.rollout", "the sample that was asked for, where one rollout gave several"),
        Column(
            "purpose", TEXT, "t.purpose", "`train`, `eval`, or `call` (a generation that a rollout function asked for)"
        ),
        *_source_columns("p"),
        Column("status", TEXT, _STATUS, "`completed`, `failed`, `suspended`, `requested` (waits, or is being made)"),
        Column("failure", TEXT, "f.kind", "why it could not be made"),
        Column("attempts", INT, "coalesce(t.attempts, 0)", "how often it was asked for"),
        Column("suspensions", INT, "coalesce(s.suspensions, 0)", "how often it was suspended"),
        Column("requested", TIME, "t.requested", "UTC, first"),
        Column("completed", TIME, "t.completed", "UTC"),
        Column("seconds", FLOAT, "epoch(t.completed) - epoch(t.requested)", "from first request to completion, s"),
        Column("queued_seconds", FLOAT, "t.timings_queued", "waiting for an engine, s"),
        Column("generating_seconds", FLOAT, "t.timings_generating", "s"),
        Column("updating_seconds", FLOAT, "t.timings_updating", "held by weight updates, s"),
        Column("engine", TEXT, "t.engine", "the worker that completed it"),
        Column("seed", INT, "t.seed", "of sampling"),
        Column("stop_reason", TEXT, "t.stop", "`stop` (it ended), `length` (it was cut), `abort`"),
        Column(
            "prompt",
            TEXT,
            "CASE WHEN t.own_prompt IS NULL THEN p.text ELSE nullif(t.prompt_text, '') END",
            "as the model saw it: its group's, or what a generate function made of it (null where an older log holds "
            "only the tokens of that)",
        ),
        Column("text", TEXT, "t.text", "the response"),
        Column("prompt_tokens", INT, "coalesce(t.prompt_length, t.asked)", "how many"),
        Column("tokens", INT, "t.length", "of the response, how many"),
        Column("oldest_version", INT, f"list_min({_SPAN_VERSIONS})", "oldest weights in it"),
        Column("newest_version", INT, f"list_max({_SPAN_VERSIONS})", "newest weights in it"),
        Column("versions", INTS, _SPAN_VERSIONS, "weights that made it, in order"),
        Column(
            "spans",
            'STRUCT("start" BIGINT, "end" BIGINT, "version" BIGINT)[]',
            "t.spans",
            "response tokens [start, end) were made by version; `unnest(spans, recursive := true)` gives rows",
        ),
        Column("reward", FLOAT, "r.reward", "as graded; null before, or where grading failed"),
        Column("grader", TEXT, "r.grader", "name or path"),
        Column("reward_detail", JSON, "r.detail", "the grader's dict, where it gave one"),
        Column("reward_failure", TEXT, "r.failure", "why there is no reward"),
        Column("verdict", TEXT, "v.verdict", "on its group: `accepted`, `rejected`, null before"),
        Column("verdict_reason", TEXT, "v.reason", "of the filter, or what failed"),
        Column("step", INT, "b.step", "the step whose batch it is in"),
        Column("batch_index", INT, "b.batch_index", "in the batch, from 0"),
        Column("normalised_reward", FLOAT, "b.normalised_reward", "the reward normalised over its group"),
        Column("trained_version", INT, "b.version", "the weight version that was made by training on it"),
        Column("staleness", INT, f"b.step - list_min({_SPAN_VERSIONS})", _STALENESS),
        Column("digest", TEXT, "t.digest", "sha256 of its tokens and log-probs, hex"),
        Column("origin_run", TEXT, "t.origin_run", "of a recorded rollout: the run that has it; else null"),
        Column("origin_sample", TEXT, "t.origin_sample", "of a recorded rollout: its name there"),
        Column("origin_position", INT, "t.origin_position", "of a recorded rollout: where its end is in that log"),
        Column(
            "origin_versions",
            INTS,
            "list_transform(t.origin_spans, lambda x: x.version)",
            "of a recorded rollout: that run's weights that made it, in order; `versions` is what they count as here",
        ),
        Column("metadata", JSON, "t.metadata", "what a generate function added"),
    ),
)

_BATCHES = _about_samples(
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
    LEFT JOIN {_VERDICTS} v ON v.of_run = t.run AND v."group" = t."group"
    LEFT JOIN {_BATCHES} b ON b.of_run = t.run AND b."group" = t."group"
    LEFT JOIN {_COMMITS} k ON k.run = b.run AND k.step = b.step""",
    (
        RUN,
        Column("position", INT, "t.position", "of its prompt"),
        Column("group_id", TEXT, 't."group"', "its id"),
        Column("purpose", TEXT, "t.purpose", "`train` or `eval`"),
        *_source_columns("t"),
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
