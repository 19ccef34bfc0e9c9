"""Steps."""

from __future__ import annotations

from slime_events.analysis.query.table import FLOAT, INT, NUMBERS, RUN, TEXT, TIME, Column, Table

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
        Column("reward", FLOAT, "t.reward", "mean over the batch, as graded"),
        Column("oldest_version", INT, "t.oldest_version", "oldest weights in the batch"),
        Column("staleness", INT, "t.step - t.oldest_version", "versions between those and what was trained"),
        Column("seconds", FLOAT, "list_sum(map_values(t.seconds))", "of the trainer, s"),
        Column("parts", NUMBERS, "t.seconds", "seconds by part: `parts['train']`"),
        Column("metrics", NUMBERS, "t.metrics", "losses, norms, log-prob differences: `metrics['loss']`"),
        Column("batch_digest", TEXT, "t.batch_digest", "sha256, hex"),
        Column("weights_digest", TEXT, "t.weights_digest", "sha256 after the step, hex"),
        Column("optimizer_digest", TEXT, "t.optimizer_digest", "sha256 after the step, hex"),
    ),
)
