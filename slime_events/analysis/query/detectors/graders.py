"""Detectors on the rewards of a second grader beside the recorded ones."""

from __future__ import annotations

from slime_events.analysis.query.detectors.detector import (
    SAMPLES,
    SECOND_REWARDS,
    STEPS,
    WINDOW,
    WINDOWS,
    Detector,
    Parameter,
    Severity,
    examples,
)
from slime_events.analysis.query.table import FLOAT, INT, TEXT, Column

_BOTH = f"""{WINDOWS},
    graded_twice AS (
        SELECT p.*, s.reward AS second,
               p.reward - avg(p.reward) OVER same AS advantage, s.reward - avg(s.reward) OVER same AS second_advantage
        FROM placed p JOIN {SECOND_REWARDS} s ON s.sample = p.sample WHERE s.reward IS NOT NULL
        WINDOW same AS (PARTITION BY p.run, p.group_id)
    )"""
_MIN_ANSWERS = Parameter("min_answers", 20, "fewest answers that a finding rests on")

SIGN_FLIPS = Detector(
    "sign_flips",
    "The run's grader ranks answers above the mean of their group that the second grader ranks below it, or the other "
    "way round. Training moved the policy against the second grader.",
    Severity.WARNING,
    (WINDOW, Parameter("min_share", 0.02, "least share of the answers that both graded"), _MIN_ANSWERS),
    ("graded", SECOND_REWARDS),
    f"""{_BOTH},
    signed AS (
        SELECT *, abs(advantage) > 1e-9 AND abs(second_advantage) > 1e-9
                  AND sign(advantage) <> sign(second_advantage) AS flips
        FROM graded_twice
    ),
    flipped AS (
        SELECT CASE WHEN advantage > 0 THEN 'encouraged' ELSE 'discouraged' END AS direction, count(*) AS answers,
               min(step) AS first_step, max(step) AS last_step, avg(reward) AS reward, avg(second) AS second,
               count(*) FILTER (part = 'first') AS early, count(*) FILTER (part = 'last') AS late,
               {examples(order="abs(advantage - second_advantage) DESC, sample")} AS examples
        FROM signed WHERE flips GROUP BY direction
    ),
    sizes AS (
        SELECT count(*) AS answers, count(*) FILTER (part = 'first') AS early, count(*) FILTER (part = 'last') AS late
        FROM signed
    )""",
    """flipped t, sizes WHERE t.answers >= min_answers AND t.answers >= min_share * sizes.answers
    ORDER BY t.answers DESC""",
    (
        Column("direction", TEXT, "t.direction", "`encouraged` or `discouraged`, by the run's grader"),
        Column("answers", INT, "t.answers", "number of answers"),
        Column("share", FLOAT, "t.answers / sizes.answers", "share of the answers that both graded"),
        Column("first_share", FLOAT, "t.early / nullif(sizes.early, 0)", "the same in the first window"),
        Column("last_share", FLOAT, "t.late / nullif(sizes.late, 0)", "the same in the last window"),
        Column("reward", FLOAT, "t.reward", "mean recorded reward of these answers"),
        Column("second_reward", FLOAT, "t.second", "mean reward by the second grader"),
        *STEPS,
        SAMPLES,
    ),
)

REWARD_LOST = Detector(
    "reward_lost",
    "Answers of the last steps are rewarded by the run's grader, but not by the second grader.",
    Severity.WARNING,
    (
        WINDOW,
        Parameter("min_share", 0.1, "least share of the answers that the run's grader rewards in the last window"),
        _MIN_ANSWERS,
    ),
    ("graded", SECOND_REWARDS),
    f"""{_BOTH},
    bounds AS (SELECT min(second) AS low, max(second) AS high FROM graded_twice),
    judged AS (
        SELECT g.*, CASE WHEN low = high THEN second <= 0 ELSE second <= (low + high) / 2 END AS lost
        FROM graded_twice g, bounds WHERE rewarded AND part IS NOT NULL
    ),
    counts AS (
        SELECT count(*) FILTER (part = 'last') AS answers, count(*) FILTER (part = 'last' AND lost) AS lost,
               count(*) FILTER (part = 'first') AS early, count(*) FILTER (part = 'first' AND lost) AS early_lost,
               min(step) FILTER (part = 'last') AS first_step, max(step) FILTER (part = 'last') AS last_step,
               {examples(where="part = 'last' AND lost")} AS examples
        FROM judged
    )""",
    "counts t WHERE lost >= min_answers AND lost >= min_share * answers",
    (
        *STEPS,
        Column("lost", INT, "t.lost", "number of these answers"),
        Column("share", FLOAT, "t.lost / t.answers", "their share of the rewarded answers in the last window"),
        Column("first_share", FLOAT, "t.early_lost / nullif(t.early, 0)", "the same in the first window"),
        SAMPLES,
    ),
)
