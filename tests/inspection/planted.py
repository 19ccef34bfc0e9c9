"""Graded answers without a hack, with one planted, and a database with the detectors over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from slime_events.analysis.query.database import NO_REWARDS
from slime_events.analysis.query.detectors import DETECTORS
from slime_events.analysis.query.detectors.detector import SECOND_REWARDS

STEPS, GROUPS, SAMPLES = 12, 8, 4
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
Row = dict[str, Any]
Plant = Callable[[Row], Row | None]
"""Changes a row; None leaves it as it is."""


def answers(plant: Plant = lambda row: None) -> list[Row]:
    """Return graded answers of random words and lengths, half of them rewarded, with a hack planted in each row."""
    rng = random.Random(0)
    vocabulary = ["".join(rng.choices(_LETTERS, k=6)) for _ in range(400)]
    rows = []
    for step in range(STEPS):
        for group in range(GROUPS):
            name, label = f"train-0-{step * GROUPS + group:06d}", str(rng.randrange(10**6))
            for index in range(SAMPLES):
                tokens = rng.randint(6, 14)
                row = {
                    "run": "r", "position": len(rows) + 1, "sample": f"{name}-s{index}", "group_id": name, "step": step,
                    "reward": float(rng.random() < 0.5), "grader": "exact", "tokens": tokens, "truncated": False,
                    "prompt": f"What is {label}?", "label": label,
                    "text": " ".join(rng.choices(vocabulary, k=tokens)) + "<|im_end|>", "index": index,
                }  # fmt: skip
                rows.append(row | (plant(row) or {}))
    return rows


def found(
    rows: Sequence[Row],
    second: dict[str, float | None] | None = None,
    *,
    only: str = "",
    failures: int = 0,
    gap: float = 0.01,
) -> dict[str, list[Row]]:
    """Return the findings of every detector that has any.

    second: rewards of a second grader. only: run this detector. failures: of the grader, at the end. gap: of log-probs.
    """
    connection = duckdb.connect()
    keys = ("run", "position", "sample", "group_id", "step", "reward", "grader", "tokens", "truncated", "prompt",
            "label", "text")  # fmt: skip
    table = pa.Table.from_pylist([{key: row[key] for key in keys} for row in rows])
    connection.register("rows", table)
    middle = "reward > (min(reward) OVER () + max(reward) OVER ()) / 2"
    connection.execute(f"CREATE TABLE graded AS SELECT *, {middle} AS rewarded FROM rows")
    connection.execute(
        f"""CREATE TABLE rewards AS SELECT run, position, sample, grader, reward,
                CASE WHEN position > max(position) OVER () - {failures} THEN 'raised' END AS failure,
                'no such file' AS message FROM graded"""
    )
    connection.execute(
        f"""CREATE TABLE steps AS SELECT DISTINCT run, step,
                MAP {{'train_rollout_logprob_abs_diff': {gap}::DOUBLE}} AS metrics FROM graded"""
    )
    rewards = second or {}
    given = pa.table([list(rewards), pa.array(rewards.values(), pa.float64())], schema=NO_REWARDS.schema)
    connection.register(SECOND_REWARDS, given)
    findings = {}
    for detector in DETECTORS:
        if only in ("", detector.name):
            connection.execute(detector.macro)
            if rows_ := connection.sql(detector.sql).to_arrow_table().to_pylist():
                findings[detector.name] = rows_
    return findings
