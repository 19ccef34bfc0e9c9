"""Detectors on rewards alone: without differences, fallen, or not there."""

from __future__ import annotations

from slime_events.analysis.query.detectors.detector import (
    MIN_GROUPS,
    SAMPLES,
    SHORT_WINDOW,
    STEPS,
    WINDOWS,
    Detector,
    Parameter,
    Severity,
    examples,
)
from slime_events.analysis.query.table import FLOAT, INT, TEXT, Column

GRADED_FEW = Parameter("min_samples", 64, "fewest samples that a finding rests on")

EQUAL_REWARDS = Detector(
    "equal_rewards",
    "All answers of the last steps have the same reward, zero for example, so nothing is learned from them.",
    Severity.ALARM,
    (SHORT_WINDOW, GRADED_FEW, MIN_GROUPS),
    ("graded",),
    WINDOWS,
    f"""(SELECT min(step) AS first_step, max(step) AS last_step, min(reward) AS reward, max(reward) AS highest,
                count(*) AS graded, count(DISTINCT group_id) AS groups, count(DISTINCT text) AS texts,
                {examples()} AS examples FROM placed WHERE part = 'last' GROUP BY run) t
    WHERE reward = highest AND graded >= min_samples AND groups >= min_groups AND texts > 1""",
    (
        *STEPS,
        Column("reward", FLOAT, "t.reward", "the reward"),
        Column("graded", INT, "t.graded", "number of answers with it"),
        Column("texts", INT, "t.texts", "number of different texts among them"),
        SAMPLES,
    ),
)

CONSTANT_GRADER = Detector(
    "constant_grader",
    "One of the graders gave the same reward to all answers of the run, while other answers got others.",
    Severity.ALARM,
    (GRADED_FEW, MIN_GROUPS),
    ("graded",),
    f"""answers AS MATERIALIZED (FROM graded),
    constant AS (
        SELECT run, grader FROM answers GROUP BY run, grader HAVING min(reward) = max(reward)
    ),
    graders AS (
        SELECT a.grader, min(step) AS first_step, max(step) AS last_step, min(reward) AS reward,
               count(*) AS graded, count(DISTINCT group_id) AS groups,
               count(DISTINCT text) AS texts, {examples()} AS examples
        FROM answers a JOIN constant c ON c.run = a.run AND c.grader IS NOT DISTINCT FROM a.grader
        GROUP BY a.run, a.grader
    )""",
    """graders t
    WHERE graded >= min_samples AND groups >= min_groups AND texts > 1
      AND EXISTS (FROM answers a WHERE a.reward <> t.reward)
    ORDER BY graded DESC""",
    (
        Column("grader", TEXT, "t.grader", "name or path of the grader"),
        *STEPS,
        Column("reward", FLOAT, "t.reward", "the reward that it gave"),
        Column("graded", INT, "t.graded", "number of answers that it graded"),
        Column("texts", INT, "t.texts", "number of different texts among them"),
        SAMPLES,
    ),
)

REWARD_COLLAPSE = Detector(
    "reward_collapse",
    "The mean reward of the last steps is far below that of earlier steps.",
    Severity.ALARM,
    (
        SHORT_WINDOW,
        Parameter("min_drop", 0.5, "drop from the best window, as a share of its distance to the lowest reward"),
        Parameter("standard_errors", 5, "the same drop in standard errors of the difference, over groups"),
        MIN_GROUPS,
    ),
    ("graded",),
    f"""{WINDOWS},
    by_group AS (
        SELECT run, steps_back, group_id, avg(reward) AS reward, min(step) AS first_step, max(step) AS last_step,
               min(reward) AS low, max(reward) AS high, arg_min(sample, (reward, sample)) AS worst
        FROM placed GROUP BY ALL
    ),
    by_window AS (
        SELECT run, steps_back, avg(reward) AS mean, var_samp(reward) / count(*) AS variance, count(*) AS groups,
               min(first_step) AS first_step, max(last_step) AS last_step, min(low) AS low, max(high) AS high,
               {examples("worst", "reward, worst")} AS examples
        FROM by_group GROUP BY ALL HAVING count(*) >= min_groups
    ),
    best AS (
        SELECT * FROM by_window WHERE steps_back > 0
        QUALIFY row_number() OVER (PARTITION BY run ORDER BY mean DESC) = 1
    ),
    lowest AS (SELECT run, min(low) AS reward FROM by_window GROUP BY run)""",
    """by_window t JOIN best b ON b.run = t.run JOIN lowest l ON l.run = t.run
    WHERE t.steps_back = 0 AND t.low < t.high AND b.mean > l.reward
      AND (b.mean - t.mean) / (b.mean - l.reward) >= min_drop
      AND b.mean - t.mean >= standard_errors * sqrt(b.variance + t.variance)""",
    (
        *STEPS,
        Column("reward", FLOAT, "t.mean", "mean reward of the last window"),
        Column("best_reward", FLOAT, "b.mean", "mean reward of the best earlier window"),
        Column("best_first_step", INT, "b.first_step", "first step of that window"),
        Column("best_last_step", INT, "b.last_step", "last step of that window"),
        SAMPLES,
    ),
)

FAILING_GRADER = Detector(
    "failing_grader",
    "A grader fails on many of the newest answers, so their groups are rejected.",
    Severity.ALARM,
    (
        Parameter("newest", 500, "number of the newest graded answers that are looked at"),
        Parameter("max_share", 0.1, "share of failures from which it is a finding"),
        Parameter("min_failures", 20, "fewest failures that a finding rests on"),
    ),
    ("rewards",),
    f"""recent AS (SELECT * FROM rewards QUALIFY row_number() OVER (PARTITION BY run ORDER BY position DESC) <= newest),
    graders AS (
        SELECT grader, count(*) AS graded, count(failure) AS failures, mode(failure) AS failure,
               arg_max(left(message, 200), position) FILTER (failure IS NOT NULL) AS message,
               {examples(order="position DESC", where="failure IS NOT NULL")} AS examples
        FROM recent GROUP BY run, grader
    )""",
    """graders t
    WHERE failures >= min_failures AND failures / graded >= max_share ORDER BY failures DESC""",
    (
        Column("grader", TEXT, "t.grader", "name or path of the grader"),
        Column("failures", INT, "t.failures", "number of failures"),
        Column("share", FLOAT, "t.failures / t.graded", "share of the answers that it graded"),
        Column("failure", TEXT, "t.failure", "most frequent kind of failure"),
        Column("message", TEXT, "t.message", "description of the newest failure"),
        SAMPLES,
    ),
)
