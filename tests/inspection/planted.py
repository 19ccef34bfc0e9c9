"""Graded answers without a hack, with one planted, and a database with the detectors over them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class Clock(NamedTuple):
    """Times of a run: its steps begin ten seconds apart, and each takes two. Positions are seconds."""

    waits: dict[int, float] = {}
    """Further seconds that the trainer waits for the batch of a step."""
    resumed: dict[int, float] = {}
    """Seconds after which an engine joins again during such a wait."""
    evaluated: dict[int, float] = {}
    """Seconds after which an evaluation ends during such a wait."""
    wanted: int = STEPS
    """Number of steps of the run."""
    finished: bool = False

    def create(self, connection: duckdb.DuckDBPyConnection, gap: float) -> None:
        """Create the tables of steps and runs."""
        now, steps, evals = 0.0, list[Row](), list[Row]()
        activations: list[Row] = [{"run": "r", "position": 1, "time": 1.0}]
        for step in range(STEPS):
            for times, at in ((activations, self.resumed.get(step)), (evals, self.evaluated.get(step))):
                if at is not None:
                    times.append({"run": "r", "position": int(now + at), "time": now + at})
            now += 10 + self.waits.get(step, 0)
            steps.append({"step": step, "position": int(now), "sealed": now, "commit_position": int(now) + 2,
                          "committed": now + 2})  # fmt: skip
            now += 2
        as_time = "make_timestamp((time * 1000000)::BIGINT) AS time"
        connection.register("step_rows", pa.Table.from_pylist(steps))
        connection.execute(
            f"""CREATE TABLE steps AS SELECT 'r' AS run,
                    * REPLACE (make_timestamp((sealed * 1000000)::BIGINT) AS sealed,
                               make_timestamp((committed * 1000000)::BIGINT) AS committed),
                    MAP {{'train_rollout_logprob_abs_diff': {gap}::DOUBLE}} AS metrics FROM step_rows"""
        )
        schema = pa.schema({"run": pa.string(), "position": pa.int64(), "time": pa.float64()})
        for name, times in (("activations", activations), ("evals", evals)):
            connection.register(f"{name}_rows", pa.Table.from_pylist(times, schema=schema))
            connection.execute(f"CREATE TABLE {name} AS SELECT * REPLACE ({as_time}) FROM {name}_rows")
        settings = json.dumps({"rollout": {"num_rollout": self.wanted}})
        finished = "make_timestamp(1)" if self.finished else "NULL::TIMESTAMP"
        connection.execute(
            f"""CREATE TABLE runs AS
                SELECT 'r' AS run, '{settings}'::JSON AS settings, 0 AS resumptions, {finished} AS finished"""
        )


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
    clock: Clock | None = None,
    query: str = "",
) -> dict[str, list[Row]]:
    """Return the findings of every detector that has any.

    second: rewards of a second grader. only: run this detector. failures: of the grader, at the end. gap: of log-probs.
    clock: when batches were sealed and committed. query: the query of the detector `only`, if not the default.
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
                'no such file' AS message, make_timestamp(0) AS "time", group_id FROM graded"""
    )
    (clock or Clock()).create(connection, gap)
    rewards = second or {}
    given = pa.table([list(rewards), pa.array(rewards.values(), pa.float64())], schema=NO_REWARDS.schema)
    connection.register(SECOND_REWARDS, given)
    findings = {}
    for detector in DETECTORS:
        if only in ("", detector.name):
            connection.execute(detector.macro)
            if rows_ := connection.sql(query or detector.sql()).to_arrow_table().to_pylist():
                findings[detector.name] = rows_
    return findings
