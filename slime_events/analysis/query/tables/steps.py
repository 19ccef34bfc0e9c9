"""Tables on steps, the weight versions that they make, and evaluations of those."""

from slime_events.analysis.query.table import FLOAT, IN_LOG, INT, NUMBERS, RUN, TEXT, TIME, Column, Table

STEPS = Table(
    "steps",
    "A row per step: its sealed batch, and the result of training on it.",
    """(SELECT coalesce(b.run, c.run) AS run, coalesce(b.position, c.position) AS position,
            coalesce(b.step, c.step) AS step, b."time" AS sealed, c."time" AS committed,
            c.position AS commit_position, len(b.groups) AS groups,
            coalesce(len(b.samples), c.samples) AS samples, list_avg(b.raw_rewards) AS reward, b.oldest_version,
            coalesce(b.digest, c.batch_digest) AS batch_digest,
            c.* EXCLUDE (run, depth, position, "time", producer, step, samples)
        FROM log.batch_sealed b FULL JOIN log.step_committed c ON c.run = b.run AND c.step = b.step) t""",
    (
        RUN,
        Column("position", INT, "t.position", "position of its batch, or of its commit if it has none"),
        Column("step", INT, "t.step", "number of the step, from 0"),
        Column("version", INT, "t.version", "weight version that it made: step + 1; null if it is not committed"),
        Column("sealed", TIME, "t.sealed", "time at which the batch was sealed, UTC"),
        Column("committed", TIME, "t.committed", "time of the commit, UTC"),
        Column("commit_position", INT, "t.commit_position", "position of its commit; null if it is not committed"),
        Column("groups", INT, "t.groups", "number of groups in the batch"),
        Column("samples", INT, "t.samples", "number of samples in the batch"),
        Column("tokens", INT, "t.tokens", "number of trained tokens, prompts included"),
        Column("reward_mean", FLOAT, "t.reward", "mean reward over the batch, as graded"),
        Column("oldest_version", INT, "t.oldest_version", "oldest weight version in the batch"),
        Column("staleness", INT, "t.step - t.oldest_version", "number of versions from those to the trained weights"),
        Column("seconds", FLOAT, "list_sum(map_values(t.seconds))", "time of the trainer [s]"),
        Column("seconds_by_part", NUMBERS, "t.seconds", "time of the trainer by part [s]: `seconds_by_part['train']`"),
        Column("metrics", NUMBERS, "t.metrics", "losses, norms, log-prob differences: `metrics['loss']`"),
        Column("batch_digest", TEXT, "t.batch_digest", "sha256 of the batch, hex"),
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
        Column("version", INT, "t.version", "number of the version; 0 is what the run starts from"),
        Column("parent", INT, "t.parent", "version from which it was trained; null for what the run starts from"),
        Column("step", INT, "t.step", "step that made it"),
        Column("published", TIME, 't."time"', "time of publication, UTC"),
        Column("kind", TEXT, "t.kind", "`full` or `delta`"),
        Column("bytes", INT, "t.bytes", "size of its files [bytes]"),
        Column("url", TEXT, "t.url", "URL of its folder"),
        Column("digest", TEXT, "t.digest", "digest of all tensors"),
        Column("engines", INT, "coalesce(t.engines, 0)", "number of engines that loaded it"),
        Column("activated", TIME, "t.activated", "time of the first load, UTC"),
        Column("max_lag_seconds", FLOAT, "t.lag", "time from publication to the last load [s]"),
        Column("max_pause_seconds", FLOAT, "t.held", "longest pause of an engine to load it [s]"),
    ),
)

ACTIVATIONS = Table(
    "activations",
    "A row per weight version and engine that loaded it.",
    "log.weights_activated t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "time of the load, UTC"),
        Column("version", INT, "t.version", "weight version"),
        Column("engine", TEXT, "t.engine", "worker that loaded it"),
        Column("pause_seconds", FLOAT, "t.seconds", "pause of the engine to load it [s]"),
        Column("lag_seconds", FLOAT, "t.lag", "time since its publication [s]"),
        Column("resumed_rollouts", INT, "t.resumed", "number of running rollouts that continued with it"),
        Column("carrier", TEXT, "t.carrier", "how the engine took its bytes, such as `files`"),
    ),
)

CHECKPOINTS = Table(
    "checkpoints",
    "A row per checkpoint of the trainer.",
    "log.checkpoint_saved t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "time of the event, UTC"),
        Column("version", INT, "t.version", "weight version in it"),
        Column("url", TEXT, "t.url", "URL of its folder"),
        Column("weights_digest", TEXT, "t.weights_digest", "sha256 of the weights, hex"),
        Column("optimizer_digest", TEXT, "t.optimizer_digest", "sha256 of the optimizer state, hex"),
        Column("seconds", FLOAT, "t.seconds", "duration of saving [s]"),
    ),
)

RESTORATIONS = Table(
    "restorations",
    "A row per trainer that took over and resumed from an earlier trainer's steps.",
    "log.trainer_restored t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "time of the event, UTC"),
        Column("version", INT, "t.version", "weight version from which it resumed"),
        Column("trainer", TEXT, "t.trainer", "worker that took over"),
        Column("checkpoint", INT, "t.checkpoint", "version of the checkpoint that it loaded, or the run's first"),
        Column("weights", TEXT, "t.weights", "`exact`: as committed"),
        Column("optimizer", TEXT, "t.optimizer", "`exact` or `approximate`"),
        Column("retrained", INT, "t.retrained", "number of steps since the checkpoint that were retrained"),
        Column("differing", INT, "t.differing", "number of retrained steps with a different result"),
        Column("skipped", INT, "t.skipped", "number of steps since the checkpoint whose weights were loaded instead"),
        Column(
            "max_abs",
            FLOAT,
            "t.distance_max_abs",
            "largest absolute difference of retrained weights from the committed ones",
        ),
        Column(
            "relative_l2", FLOAT, "t.distance_relative_l2", "relative L2 difference of those weights, over all tensors"
        ),
        Column(
            "optimizer_digest", TEXT, "t.optimizer_digest", "sha256 of the optimizer state with which it resumed, hex"
        ),
        Column("seconds", FLOAT, "t.seconds", "duration of loading and retraining [s]"),
    ),
)

EVALS = Table(
    "evals",
    "A row per evaluation that ended: one data set, one weight version.",
    "log.eval_completed t",
    (
        *IN_LOG,
        Column("time", TIME, 't."time"', "time of the event, UTC"),
        Column("dataset", TEXT, "t.dataset", "name of the data set"),
        Column("version", INT, "t.version", "evaluated weight version"),
        Column("reward_mean", FLOAT, "t.mean", "mean reward; a failed sample counts as 0"),
        Column("pass_rates", NUMBERS, "t.pass_rates", "unbiased pass@k: `pass_rates['pass@4']`"),
        Column("samples", INT, "t.samples", "number of samples"),
        Column("failed", INT, "t.failed", "number of failed samples"),
        Column("tokens_mean", FLOAT, "t.mean_length", "mean response length [tokens]"),
        Column("oldest_version", INT, "t.oldest_version", "oldest weight version that made a token of it"),
        Column("newest_version", INT, "t.newest_version", "newest weight version that made a token of it"),
    ),
)
