"""A detector on log-probs: those of the trainer against those of the engines."""

from __future__ import annotations

from slime_events.analysis.query.detectors.detector import STEPS, Detector, Parameter, Severity
from slime_events.analysis.query.table import FLOAT, TEXTS, Column

LOG_PROB_GAP = Detector(
    "log_prob_gap",
    "The trainer and the engine give the same tokens different log-probs, so the policy gradient is wrong.",
    Severity.ALARM,
    (
        Parameter("last_steps", 5, "steps that are averaged [steps]"),
        Parameter("max_gap", 0.1, "mean absolute difference from which it is a finding [nats]"),
    ),
    ("steps",),
    """gaps AS (
        SELECT run, step, metrics['train_rollout_logprob_abs_diff'] AS gap FROM steps
        WHERE metrics['train_rollout_logprob_abs_diff'] IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY run ORDER BY step DESC) <= last_steps
    ),
    averaged AS (
        SELECT run, min(step) AS first_step, max(step) AS last_step, avg(gap) AS gap FROM gaps GROUP BY run
    )""",
    "averaged t WHERE gap >= max_gap",
    (
        *STEPS,
        Column("gap", FLOAT, "t.gap", "mean of `train_rollout_logprob_abs_diff` [nats]"),
        Column("samples", TEXTS, "[]", "empty: it is about steps"),
    ),
)
