"""Steps, the weight versions that they make, and evaluations of those."""

from slime_events.analysis.query.table import FLOAT, IN_LOG, INT, NUMBERS, RUN, TEXT, TIME, Column, Table

STEPS = Table(
    "steps",
    "A row per step: the batch that was sealed and what training on it gave.",
    """(SELECT coalesce(b.run, c.run) AS run, coalesce(b.position, c.position) AS position,
            coalesce(b.step, c.step) AS step, b."time" AS sealed, c."time" AS committed, len(b.groups) AS groups,
            coalesce(len(b.samples), c.samples) AS samples, list_avg(b.raw_rewards) AS reward, b.oldest_version,
            coalesce(b.digest, c.batch_digest) AS batch_digest,
            c.* EXCLUDE (run, depth, position, "time", producer, step, samples)
        FROM log.batch_sealed b FULL JOIN log.step_committed c ON c.run = b.run AND c.step = b.step) t""",
    (
        RUN,
        Column("position", INT, "t.position", "of the batch"),
        Column("step", INT, "t.step", "from 0"),
        Column("version", INT, "t.version", "the weight version that it made: step + 1; null where not committed"),
        Column("sealed", TIME, "t.sealed", "UTC"),
        Column("committed", TIME, "t.committed", "UTC"),
        Column("groups", INT, "t.groups", "in the batch"),
        Column("samples", INT, "t.samples", "in the batch"),
        Column("tokens", INT, "t.tokens", "trained on, prompts included"),
        Column("reward_mean", FLOAT, "t.reward", "mean over the batch, as graded"),
        Column("oldest_version", INT, "t.oldest_version", "oldest weights in the batch"),
        Column("staleness", INT, "t.step - t.oldest_version", "versions between those and what was trained"),
        Column("seconds", FLOAT, "list_sum(map_values(t.seconds))", "of the trainer, s"),
        Column("seconds_by_part", NUMBERS, "t.seconds", "`seconds_by_part['train']`"),
        Column("metrics", NUMBERS, "t.metrics", "losses, norms, log-prob differences: `metrics['loss']`"),
        Column("batch_digest", TEXT, "t.batch_digest", "sha256, hex"),
        Column("weights_digest", TEXT, "t.weights_digest", "sha256 after the step, hex"),
        Column("optimizer_digest", TEXT, "t.optimizer_digest", "sha256 after the step, hex"),
    ),
)

VERSIONS = Table(
    "versions",
    "A row per weight version.",
    """(SELECT p.*, c.step, a.engines, a.activated, a.lag, a.held FROM log.weights_published p
        LEFT JOIN log.step_committed c ON c.run = p.run AND c.version = p.version
        LEFT JOIN (SELECT run, version, count(*) AS engines, min("time") AS activated, max(lag) AS lag,
                          max(seconds) AS held FROM log.weights_activated GROUP BY ALL) a
        ON a.run = p.run AND a.version = p.version) t""",
    (
        *IN_LOG,
        Column("version", INT, "t.version", "0 is what the run starts from"),
        Column("parent", INT, "t.parent", "null for what the run starts from"),
        Column("step", INT, "t.step", "the step that made it"),
        Column("published", TIME, 't."time"', "UTC"),
        Column("kind", TEXT, "t.kind", "`full` or `delta`"),
        Column("bytes", INT, "t.bytes", "of its files"),
        Column("url", TEXT, "t.url", "its folder"),
        Column("digest", TEXT, "t.digest", "of all tensors"),
        Column("engines", INT, "coalesce(t.engines, 0)", "that ran it"),
        Column("activated", TIME, "t.activated", "UTC, by the first of them"),
        Column("max_lag_seconds", FLOAT, "t.lag", "from publication to the last activation, s"),
        Column("max_pause_seconds", FLOAT, "t.held", "the longest that an engine stood still to load it, s"),
    ),
)

ACTIVATIONS = Table(
    "activations",
    "A row per weight version and engine that ran it.",
    "log.weights_activated t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "UTC"),
        Column("version", INT, "t.version", "the weight version"),
        Column("engine", TEXT, "t.engine", "the worker"),
        Column("pause_seconds", FLOAT, "t.seconds", "that the engine stood still to load it, s"),
        Column("lag_seconds", FLOAT, "t.lag", "from publication, s"),
        Column("resumed_rollouts", INT, "t.resumed", "rollouts that were under way and went on"),
    ),
)

CHECKPOINTS = Table(
    "checkpoints",
    "A row per checkpoint of the trainer.",
    "log.checkpoint_saved t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "UTC"),
        Column("version", INT, "t.version", "the weights in it"),
        Column("url", TEXT, "t.url", "its folder"),
        Column("weights_digest", TEXT, "t.weights_digest", "sha256, hex"),
        Column("optimizer_digest", TEXT, "t.optimizer_digest", "sha256, hex"),
        Column("seconds", FLOAT, "t.seconds", "of saving, s"),
    ),
)

RESTORATIONS = Table(
    "restorations",
    "A row per trainer that took over and went on from what an earlier one had trained.",
    "log.trainer_restored t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "UTC"),
        Column("version", INT, "t.version", "the weights that it went on from"),
        Column("trainer", TEXT, "t.trainer", "the worker"),
        Column("checkpoint", INT, "t.checkpoint", "the version that it loaded, or the run's first"),
        Column("weights", TEXT, "t.weights", "`exact`: as they were committed"),
        Column("optimizer", TEXT, "t.optimizer", "`exact` or `approximate`"),
        Column("retrained", INT, "t.retrained", "steps since the checkpoint, trained again"),
        Column("differing", INT, "t.differing", "those of them that came out otherwise"),
        Column("skipped", INT, "t.skipped", "steps since the checkpoint whose weights were loaded instead"),
        Column("max_abs", FLOAT, "t.distance_max_abs", "of weights trained again from the committed, any number"),
        Column("relative_l2", FLOAT, "t.distance_relative_l2", "the same, over all tensors"),
        Column("optimizer_digest", TEXT, "t.optimizer_digest", "sha256 of the state that it went on with, hex"),
        Column("seconds", FLOAT, "t.seconds", "of loading and training again, s"),
    ),
)

EVALS = Table(
    "evals",
    "A row per evaluation that ended: one data set, one weight version.",
    "log.eval_completed t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "UTC"),
        Column("dataset", TEXT, "t.dataset", "its name"),
        Column("version", INT, "t.version", "the weight version that it is of"),
        Column("reward_mean", FLOAT, "t.mean", "mean reward; failed samples count 0"),
        Column("pass_rates", NUMBERS, "t.pass_rates", "unbiased pass@k: `pass_rates['pass@4']`"),
        Column("samples", INT, "t.samples", "how many"),
        Column("failed", INT, "t.failed", "how many of them"),
        Column("tokens_mean", FLOAT, "t.mean_length", "response tokens"),
        Column("oldest_version", INT, "t.oldest_version", "oldest weights that made a token of it"),
        Column("newest_version", INT, "t.newest_version", "newest weights that made a token of it"),
    ),
)
