"""Tables on prompts, the groups of samples that answer them, their rewards and verdicts, and training on them."""

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

_SAMPLE = Column("sample", TEXT, "t.sample", "id of the sample")

PROMPTS = Table(
    "prompts",
    "A row per prompt that was drawn or sent, one per group. Prompts of evaluations are included.",
    "log.prompt_submitted t",
    (
        *IN_LOG,
        Column("group_id", TEXT, 't."group"', "group of the samples that answer it"),
        Column("submitted", TIME, 't."time"', "time of the event, UTC"),
        Column("purpose", TEXT, "t.purpose", "`train` or `eval`"),
        Column("dataset", TEXT, "t.dataset", "`train`, `inbox`, or the evaluation's name"),
        Column("version", INT, "t.version", "weight version that is evaluated; null for training"),
        Column("source", TEXT, "t.source_path", "file URL, or `inbox`"),
        Column("source_row", INT, "t.source_row", "0-based usable row of the file: the same in every epoch"),
        Column("source_line", INT, "t.source_line", "1-based line of the file"),
        Column("epoch", INT, "t.source_epoch", "pass over the source, from 0"),
        Column("source_offset", INT, "t.source_offset", "prompts drawn from this source before it"),
        Column("key", TEXT, "nullif(t.source_key, '')", "for the inbox, the sender's idempotency key"),
        Column("text", TEXT, "t.text", "prompt as the model sees it, after the chat template"),
        Column("label", TEXT, "t.label", "right answer, if there is one"),
        Column("tokens", INT, "t.tokens", "prompt length [tokens]"),
        Column("messages", JSON, "t.messages", "chat from which the prompt was made"),
        Column("metadata", JSON, "t.metadata", "metadata of the row or sender"),
        Column("tools", JSON, "t.tools", "tools of the row or sender"),
    ),
)

REJECTED_LINES = Table(
    "rejected_lines",
    "A row per line of a prompt file that could not be used.",
    "log.prompt_rejected t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "time of the event, UTC"),
        Column("dataset", TEXT, "t.dataset", "`train`, or the evaluation's name"),
        Column("source", TEXT, "t.source_path", "file URL"),
        Column("source_line", INT, "t.source_line", "1-based line of the file"),
        Column("epoch", INT, "t.source_epoch", "pass over the source, from 0"),
        Column("reason", TEXT, "t.reason", "why it could not be used, one sentence"),
    ),
)

REWARDS = Table(
    "rewards",
    "A row per sample that was graded or could not be graded.",
    """(SELECT run, position, "time", sample, "group", value, grader, grader_digest, detail, seconds,
               NULL AS kind, NULL AS message FROM log.reward_assigned
        UNION ALL
        SELECT run, position, "time", sample, "group", NULL, grader, grader_digest, NULL, seconds, kind, message
        FROM log.reward_failed) t""",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "time of the event, UTC"),
        _SAMPLE,
        Column("group_id", TEXT, 't."group"', "group of the sample"),
        Column("reward", FLOAT, "t.value", "reward as graded; null if grading failed"),
        Column("grader", TEXT, "t.grader", "name or path of the grader"),
        Column("grader_digest", TEXT, "t.grader_digest", "sha256 of the grader's source, hex"),
        Column("detail", JSON, "t.detail", "dict that the grader returned; null if it returned a number"),
        Column("seconds", FLOAT, "t.seconds", "duration of grading [s]"),
        Column("failure", TEXT, "t.kind", "why there is no reward: raised, timeout, not_a_number ..."),
        Column("message", TEXT, "t.message", "description of the failure, one sentence"),
    ),
)

_SPAN_VERSIONS = "list_transform(t.spans, lambda x: x.version)"


def _source_columns(prompt: str) -> tuple[Column, ...]:
    """Return columns on a prompt's source. prompt: alias of `log.prompt_submitted`."""
    return (
        Column("dataset", TEXT, f"{prompt}.dataset", "data set of the prompt"),
        Column("source", TEXT, f"{prompt}.source_path", "source of the prompt: file URL, or `inbox`"),
        Column("source_row", INT, f"{prompt}.source_row", "0-based usable row of the prompt: the same in every epoch"),
        Column("epoch", INT, f"{prompt}.source_epoch", "epoch of the prompt, from 0"),
        Column("label", TEXT, f"{prompt}.label", "right answer, if there is one"),
    )


def _about_samples(source: str, entity: str) -> str:
    """Return `source` (an event table, or a SELECT in brackets) with a column `of_run`, one row per `entity`."""
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
    "A row per sample of a sealed batch, in the order of the batch.",
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
        Column("step", INT, "t.step", "step that trains on it"),
        Column("batch_index", INT, "t.batch_index", "index in the batch, from 0"),
        _SAMPLE,
        Column("sample_run", TEXT, "t.of_run", "run that made the sample: for a learner, its parent"),
        Column("reward", FLOAT, "t.raw_reward", "reward as graded"),
        Column(
            "normalised_reward",
            FLOAT,
            "t.reward",
            "reward normalised over its group, from which advantages are computed",
        ),
        Column(
            "removed",
            BOOL,
            "list_contains(t.removed, t.sample)",
            "whether --rollout-sample-filter-path removed it from training",
        ),
        Column("sealed", TIME, 't."time"', "time at which the batch was sealed, UTC"),
        Column("committed", TIME, "t.committed", "time of the step's commit, UTC; null if it is not committed"),
        Column("version", INT, "t.version", "weight version that the step made; null if it is not committed"),
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
            q.requested, q.attempts, q.attempt, q.seed, q.prompt AS requested_prompt, c."time" AS completed,
            c.* EXCLUDE (run, position, "time", producer, sample, "group", attempt, rollout, prompt, depth),
            c.prompt AS own_prompt
        FROM {_REQUESTS} q FULL JOIN log.rollout_completed c ON c.run = q.run AND c.sample = q.sample) t
    LEFT JOIN log.prompt_submitted p ON p.run = t.run AND p."group" = t."group"
    LEFT JOIN {_FAILURES} f ON f.run = t.run AND f.sample = t.sample AND f.attempt = t.attempt
    LEFT JOIN {_SUSPENSIONS} s ON s.run = t.run AND s.sample = t.sample
    LEFT JOIN rewards r ON r.run = t.run AND r.sample = t.sample
    LEFT JOIN {_VERDICTS} v ON v.of_run = t.run AND v."group" = t."group"
    LEFT JOIN trained b ON b.sample_run = t.run AND b.sample = t.sample"""

_STALENESS = "number of versions from the oldest weights in it to the trained weights"
_STATUS = """CASE WHEN t.completed IS NOT NULL THEN 'completed' WHEN f.sample IS NOT NULL THEN 'failed'
               WHEN s.attempt = t.attempt THEN 'suspended' ELSE 'requested' END"""

SAMPLES = Table(
    "samples",
    "A row per sample, from its request to the weight version that it helped to make.",
    _SOURCE,
    (
        RUN,
        Column("position", INT, "t.position", "position of its first request"),
        Column("sample", TEXT, "t.sample", "`<group>-s<index>`"),
        Column("group_id", TEXT, 't."group"', "group of the sample"),
        Column("index", INT, 't."index"', "index in the group; null for further samples of one rollout"),
        Column("rollout", TEXT, "t.rollout", "requested sample, if one rollout gave several"),
        Column(
            "purpose", TEXT, "t.purpose", "`train`, `eval`, or `call` (a generation requested by a rollout function)"
        ),
        *_source_columns("p"),
        Column("status", TEXT, _STATUS, "`completed`, `failed`, `suspended`, `requested` (waiting or running)"),
        Column("failure", TEXT, "f.kind", "kind of the rollout's failure"),
        Column("attempts", INT, "coalesce(t.attempts, 0)", "number of requests"),
        Column("suspensions", INT, "coalesce(s.suspensions, 0)", "number of suspensions"),
        Column("requested", TIME, "t.requested", "time of the first request, UTC"),
        Column("completed", TIME, "t.completed", "time of completion, UTC"),
        Column(
            "seconds", FLOAT, "epoch(t.completed) - epoch(t.requested)", "time from first request to completion [s]"
        ),
        Column("queued_seconds", FLOAT, "t.timings_queued", "time waiting for an engine [s]"),
        Column("generating_seconds", FLOAT, "t.timings_generating", "time generating [s]"),
        Column("updating_seconds", FLOAT, "t.timings_updating", "time held up by weight updates [s]"),
        Column("engine", TEXT, "t.engine", "worker that completed it"),
        Column("seed", INT, "t.seed", "sampling seed"),
        Column("stop_reason", TEXT, "t.stop", "`stop` (it ended), `length` (it was truncated), `abort`"),
        Column(
            "prompt",
            TEXT,
            "CASE WHEN t.own_prompt IS NULL THEN p.text ELSE nullif(t.prompt_text, '') END",
            "prompt as the model saw it: the group's, or a generate function's (null if an older log has only "
            "that prompt's tokens)",
        ),
        Column("text", TEXT, "t.text", "text of the response"),
        Column("prompt_tokens", INT, "coalesce(t.prompt_length, t.requested_prompt)", "prompt length [tokens]"),
        Column("tokens", INT, "t.length", "response length [tokens]"),
        Column("oldest_version", INT, f"list_min({_SPAN_VERSIONS})", "oldest weight version in it"),
        Column("newest_version", INT, f"list_max({_SPAN_VERSIONS})", "newest weight version in it"),
        Column("versions", INTS, _SPAN_VERSIONS, "weight versions that made it, in order"),
        Column(
            "spans",
            'STRUCT("start" BIGINT, "end" BIGINT, "version" BIGINT)[]',
            "t.spans",
            "weights of response tokens [start, end); `unnest(spans, recursive := true)` gives rows",
        ),
        Column("reward", FLOAT, "r.reward", "reward as graded; null before grading, or if it failed"),
        Column("grader", TEXT, "r.grader", "name or path of the grader"),
        Column("reward_detail", JSON, "r.detail", "dict that the grader returned; null if it returned a number"),
        Column("reward_failure", TEXT, "r.failure", "why there is no reward"),
        Column("verdict", TEXT, "v.verdict", "verdict on its group: `accepted`, `rejected`; null before"),
        Column("verdict_reason", TEXT, "v.reason", "reason of the filter, or the failure"),
        Column("step", INT, "b.step", "step whose batch has it"),
        Column("batch_index", INT, "b.batch_index", "index in the batch, from 0"),
        Column("normalised_reward", FLOAT, "b.normalised_reward", "reward normalised over its group"),
        Column("trained_version", INT, "b.version", "weight version made by training on it"),
        Column("staleness", INT, f"b.step - list_min({_SPAN_VERSIONS})", _STALENESS),
        Column("digest", TEXT, "t.digest", "sha256 of tokens and log-probs, hex"),
        Column("origin_run", TEXT, "t.origin_run", "for a recorded rollout, the run that has it; else null"),
        Column("origin_sample", TEXT, "t.origin_sample", "for a recorded rollout, its id in that run"),
        Column(
            "origin_position", INT, "t.origin_position", "for a recorded rollout, the position of its end in that log"
        ),
        Column(
            "origin_versions",
            INTS,
            "list_transform(t.origin_spans, lambda x: x.version)",
            "for a recorded rollout, that run's weight versions in order; `versions` has this run's numbers",
        ),
        Column("metadata", JSON, "t.metadata", "metadata that a generate function added"),
    ),
)

_BATCHES = _about_samples(
    '(SELECT run, depth, position, step, unnest(groups) AS "group" FROM log.batch_sealed)', '"group"'
)

GROUPS = Table(
    "groups",
    "A row per group, from its prompt to its verdict and the step that trained on it.",
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
        Column("position", INT, "t.position", "position of its prompt"),
        Column("group_id", TEXT, 't."group"', "id of the group"),
        Column("purpose", TEXT, "t.purpose", "`train` or `eval`"),
        *_source_columns("t"),
        Column("submitted", TIME, 't."time"', "time at which the prompt was submitted, UTC"),
        Column("samples", INT, "coalesce(q.requested, 0)", "number of requested samples"),
        Column("completed", INT, "coalesce(c.completed, 0)", "number of completed samples"),
        Column("truncated", INT, "coalesce(c.cut, 0)", "number of samples truncated by the length limit"),
        Column("distinct_responses", INT, "c.answers", "number of different response texts"),
        Column("tokens_mean", FLOAT, "c.tokens", "mean response length [tokens]"),
        Column("oldest_version", INT, "c.oldest", "oldest weight version in it"),
        Column("reward_mean", FLOAT, "r.mean", "mean reward over the graded samples"),
        Column("reward_std", FLOAT, "r.std", "standard deviation of the reward, unbiased (n - 1); null for one sample"),
        Column("reward_min", FLOAT, "r.low", "lowest reward"),
        Column("reward_max", FLOAT, "r.high", "highest reward"),
        Column("pass_rate", FLOAT, "r.passed", "share of graded samples whose reward is exactly 1"),
        Column("grading_failures", INT, "coalesce(r.failed, 0)", "number of samples whose grading failed"),
        Column("verdict", TEXT, "v.verdict", "`accepted`, `rejected`; null before, and for evaluations"),
        Column("cause", TEXT, "v.cause", "cause of a rejection: filter, reward_failed, rollout_failed, stale ..."),
        Column("reason", TEXT, "v.reason", "reason of the filter, or the failure"),
        Column("filter", TEXT, "v.filter", "path of the filter; `none` if there is none"),
        Column("figures", NUMBERS, "v.figures", "figures on which the verdict is based"),
        Column("decided", TIME, 'v."time"', "time of the verdict, UTC"),
        Column("seconds", FLOAT, 'epoch(v."time") - epoch(t."time")', "time from prompt to verdict [s]"),
        Column("step", INT, "b.step", "step whose batch has it"),
        Column("trained_version", INT, "k.version", "weight version made by training on it"),
    ),
)
