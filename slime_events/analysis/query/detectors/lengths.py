"""Detectors on the length of answers."""

from __future__ import annotations

from slime_events.analysis.query.detectors.detector import (
    MIN_GROUPS,
    SAMPLES,
    STEPS,
    WINDOW,
    WINDOWS,
    Detector,
    Parameter,
    Severity,
    examples,
)
from slime_events.analysis.query.table import FLOAT, INT, Column

_BOUND = "tanh(atanh(greatest(-0.999999, least(0.999999, abs({0})))) - 2 / sqrt(greatest(1, {1} - 3)))"
"""Lower bound of a correlation's size: two standard errors below it, by Fisher's transformation."""

LENGTH_PAYS = Detector(
    "length_pays",
    "Longer answers earn more, or shorter answers do, at every length: among the shorter half of the answers and among "
    "the longer half, against other answers to the same prompt.",
    Severity.WARNING,
    (
        Parameter("max_groups", 200, "most groups in the newest and the oldest window; at most half of them"),
        Parameter("min_correlation", 0.4, "least size of the correlation in each half, two standard errors deducted"),
        MIN_GROUPS,
    ),
    ("graded",),
    f"""answers AS MATERIALIZED (FROM graded),
    unequal AS (
        SELECT run, group_id, max(step) AS step FROM answers GROUP BY run, group_id HAVING max(tokens) > min(tokens)
    ),
    numbered AS (
        SELECT run, group_id, row_number() OVER (PARTITION BY run ORDER BY step, group_id) AS number,
               count(*) OVER (PARTITION BY run) AS total
        FROM unequal
    ),
    sized AS (SELECT *, least(max_groups, total // 2) AS size FROM numbered),
    placed AS (
        SELECT a.*, CASE WHEN number > total - size THEN 'last' ELSE 'first' END AS part
        FROM answers a JOIN sized s ON s.run = a.run AND s.group_id = a.group_id
        WHERE number > total - size OR number <= size
    ),
    halved AS (SELECT *, ntile(2) OVER (PARTITION BY run, part ORDER BY tokens, sample) AS half FROM placed),
    parts_and_all AS (FROM halved UNION ALL SELECT * REPLACE (0 AS half) FROM halved),
    centred AS (
        SELECT *, reward - avg(reward) OVER same AS r, tokens - avg(tokens) OVER same AS l
        FROM parts_and_all WINDOW same AS (PARTITION BY run, part, half, group_id)
    ),
    varied AS (SELECT * FROM centred QUALIFY max(abs(l)) OVER (PARTITION BY run, part, half, group_id) > 1e-9),
    halves AS (
        SELECT run, part, half, count(DISTINCT group_id) AS groups, min(step) AS first_step, max(step) AS last_step,
               CASE WHEN stddev_pop(r) > 1e-9 THEN corr(r, l) END AS size, avg(tokens) AS tokens,
               {examples(order="tokens DESC, sample")} AS examples
        FROM varied GROUP BY ALL
    ),
    beside AS (
        SELECT t.*, s.groups AS shorter_groups, s.size AS shorter, l.groups AS longer_groups, l.size AS longer,
               f.size AS first_size
        FROM halves t
        JOIN halves s ON s.run = t.run AND s.part = t.part AND s.half = 1
        JOIN halves l ON l.run = t.run AND l.part = t.part AND l.half = 2
        JOIN halves f ON f.run = t.run AND f.part = 'first' AND f.half = 0
        WHERE t.part = 'last' AND t.half = 0
    )""",
    f"""beside t
    WHERE least(shorter_groups, longer_groups) >= min_groups AND sign(shorter) = sign(longer)
      AND {_BOUND.format("shorter", "shorter_groups")} >= min_correlation
      AND {_BOUND.format("longer", "longer_groups")} >= min_correlation""",
    (
        *STEPS,
        Column("correlation", FLOAT, "t.size", "correlation of reward and length within groups"),
        Column("shorter_half", FLOAT, "t.shorter", "the same among the shorter half of the answers"),
        Column("longer_half", FLOAT, "t.longer", "the same among the longer half"),
        Column("change", FLOAT, "t.size - t.first_size", "change of the correlation since the oldest window"),
        Column("groups", INT, "t.groups", "number of groups whose answers differ in length"),
        Column("tokens", FLOAT, "t.tokens", "mean length of their answers [tokens]"),
        SAMPLES,
    ),
)

LENGTH_EXPLOSION = Detector(
    "length_explosion",
    "Answers have become much longer without a higher reward, or the length limit cuts most of them.",
    Severity.ALARM,
    (
        WINDOW,
        Parameter("min_growth", 2, "mean length in the last window, divided by that in the first"),
        Parameter("max_truncated", 0.5, "share of truncated answers in the last window from which it is a finding"),
        MIN_GROUPS,
    ),
    ("graded",),
    f"""{WINDOWS},
    by_group AS (
        SELECT run, part, group_id, avg(reward) AS reward, avg(tokens) AS tokens, avg(truncated::INT) AS truncated,
               min(step) AS first_step, max(step) AS last_step, arg_max(sample, (tokens, sample)) AS longest
        FROM placed WHERE part IS NOT NULL GROUP BY ALL
    ),
    by_window AS (
        SELECT run, part, avg(reward) AS reward, var_samp(reward) / count(*) AS variance, avg(tokens) AS tokens,
               avg(truncated) AS truncated, min(first_step) AS first_step, max(last_step) AS last_step,
               count(*) AS groups, {examples("longest", "tokens DESC, longest")} AS examples
        FROM by_group GROUP BY ALL
    )""",
    """by_window t JOIN by_window f ON f.run = t.run AND f.part = 'first'
    WHERE t.part = 'last' AND t.groups >= min_groups AND f.groups >= min_groups AND f.tokens > 0
      AND t.tokens / f.tokens >= min_growth
      AND (t.reward - f.reward <= 2 * sqrt(t.variance + f.variance)
           OR (t.truncated >= max_truncated AND f.truncated < max_truncated / 2))""",
    (
        *STEPS,
        Column("tokens", FLOAT, "t.tokens", "mean length in the last window [tokens]"),
        Column("first_tokens", FLOAT, "f.tokens", "mean length in the first window [tokens]"),
        Column("truncated", FLOAT, "t.truncated", "share of truncated answers in the last window"),
        Column("reward", FLOAT, "t.reward", "mean reward in the last window"),
        Column("first_reward", FLOAT, "f.reward", "mean reward in the first window"),
        SAMPLES,
    ),
)
