"""The table `intervals`: hand-made logs with known times, and the small run against `spans` and `samples`."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.envelope import enclose
from schemas.event import Event
from schemas.rollouts import Maker, Timings, WeightSpan
from slime_events.analysis.lanes.idle import Idle
from slime_events.analysis.lanes.lanes import SQL, Lanes
from slime_events.analysis.lanes.window import window_of
from slime_events.analysis.query import tables_of
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_reader import OpenedRun
from storage.log import Append
from storage.memory_log import MemoryLog
from tests import made
from tests.lineage import opened

Timed = list[tuple[float, Event]]


async def _run(timed: Timed) -> OpenedRun:
    """A run whose events have these times [s]."""
    log = MemoryLog("r")
    appends = [Append(enclose("r", event, at=round(at * 1e9), producer="w")) for at, event in timed]
    await log.append(appends)
    return made.opened(log, TrainSettings())


async def _rows(run: OpenedRun, sql: str = "FROM intervals ORDER BY started, position, work") -> list[dict[str, Any]]:
    async with tables_of(run) as tables:
        rows: list[dict[str, Any]] = (await tables.sql(sql)).arrow().to_pylist()
    return rows


def _of(rows: list[dict[str, Any]], work: str) -> list[tuple[float, float]]:
    """Start and end of the intervals of a kind [s]."""
    return [(row["started"].timestamp(), row["ended"].timestamp()) for row in rows if row["work"] == work]


def _log() -> Timed:
    """One rollout over two versions, its group, and its step."""
    spans = (WeightSpan(0, 6, 0), WeightSpan(6, 10, 1))
    timings = Timings(queued=2.0, generating=7.5, updating=0.5)
    tokens, log_probs = list(range(10)), [-0.5] * 10
    return [
        (100, made.started()),
        (100, made.activated(0, engine="e", seconds=0.25)),
        (110, made.submitted("g")),
        (110, made.requested("g-s0")),
        (116, made.activated(1, engine="e", seconds=0.5)),
        (120, made.completed("g-s0", tokens, log_probs, length=10, spans=spans, engine="e", timings=timings)),
        (123, made.assigned("g-s0", value=1.0, seconds=1.0)),
        (125, made.accepted("g", samples=("g-s0",), rewards=(1.0,))),
        (127, made.sealed(0, groups=("g",), samples=("g-s0",), rewards=(1.0,), raw_rewards=(1.0,))),
        (130, made.committed(0, seconds={"batch": 0.5, "train": 2.0})),
        (131, made.activated(2, engine="e", seconds=0.25)),
        (135, made.submitted("h")),
        (135, made.requested("h-s0")),
        (140, made.completed("h-s0", [1], [-0.5], length=1, engine="e", timings=Timings(generating=4.0),
                             spans=(WeightSpan(0, 1, 2),))),
    ]  # fmt: skip


async def test_a_rollout_from_its_request_to_its_batch() -> None:
    rows = await _rows(await _run(_log()))
    assert _of(rows, "queue") == [(110, 112), (135, 136)]
    assert _of(rows, "generate") == [(112, 116), (116, 120), (136, 140)]
    assert [row["version"] for row in rows if row["work"] == "generate"] == [0, 1, 2]
    assert _of(rows, "reward") == [(120, 122)]
    assert _of(rows, "grade") == [(122, 123)]
    assert _of(rows, "verdict") == [(123, 125)]
    assert _of(rows, "batch") == [(125, 127)]
    assert _of(rows, "train") == [(127.5, 130)]
    assert _of(rows, "load") == [(99.75, 100), (115.5, 116), (130.75, 131)]
    assert {row["step"] for row in rows if row["work"] in ("batch", "train")} == {0}


async def test_generation_waits_for_its_weights() -> None:
    timed: Timed = [
        (100, made.started()), (100, made.submitted("g")), (100, made.requested("g-s0", min_version=3)),
        (106, made.activated(3, engine="e", seconds=1.0)),
        (110, made.completed("g-s0", [1], [-0.5], length=1, engine="e", timings=Timings(generating=9.0),
                             spans=(WeightSpan(0, 1, 3),))),
    ]  # fmt: skip
    rows = await _rows(await _run(timed))
    assert _of(rows, "queue") == [(100, 106)]
    assert _of(rows, "generate") == [(106, 110)]


async def test_a_change_of_weights_without_a_load_is_at_its_share_of_tokens() -> None:
    timed = [(at, event) for at, event in _log() if at != 116]
    assert _of(await _rows(await _run(timed)), "generate")[:2] == [(112, 116.8), (116.8, 120)]


async def test_rollouts_that_no_engine_made_and_attempts_that_failed() -> None:
    timed: Timed = [
        (100, made.started()), (100, made.submitted("g")), (100, made.requested("g-s0", maker=Maker.AGENT)),
        (104, made.completed("g-s0", [1], [-0.5], length=1, engine="gateway", timings=Timings())),
        (105, made.requested("g-s1")), (107, made.failed("g-s1", engine="e")),
    ]  # fmt: skip
    rows = await _rows(await _run(timed))
    assert [(row["role"], row["work"]) for row in rows] == [("agent", "rollout"), ("engine", "failed")]
    assert _of(rows, "rollout") == [(100, 104)]
    assert _of(rows, "failed") == [(105, 107)]


async def test_the_small_run_agrees_with_its_spans_and_samples() -> None:
    run = await opened.small()
    rows, spans = await _rows(run), await _rows(run, "SELECT name, started, ended FROM spans")
    for work, span in {"grade": "grade", "train": "train", "load": "activate"}.items():
        theirs = sorted((row["started"], row["ended"]) for row in spans if row["name"] == span)
        assert sorted((row["started"], row["ended"]) for row in rows if row["work"] == work) == theirs != []
    seconds = {row["sample"]: row["seconds"] for row in await _rows(run, "SELECT sample, seconds FROM samples")}
    of_sample = dict.fromkeys(seconds, 0.0)
    for row in rows:
        if row["work"] in ("queue", "generate"):
            of_sample[row["sample"]] += row["seconds"]
    assert of_sample == pytest.approx(seconds, abs=1e-5)
    assert all(row["started"] <= row["ended"] for row in rows)


async def test_idle_times_say_what_was_waited_for() -> None:
    async with tables_of(await _run(_log())) as tables:
        lanes = Lanes.of((await tables.sql(SQL)).arrow())
    idle = window_of(lanes, 0.0, lanes.length, 4000).idle
    by_start = {(lanes.every[gap.lane].name.name, gap.start + lanes.origin * 1e-6): gap for gap in idle}

    def gap(worker: str, start: float) -> Idle:
        return next(gap for (name, at), gap in by_start.items() if name == worker and at == pytest.approx(start))

    assert "g-s0" in gap("e", 100).waited_for
    assert "2.00 s" in gap("e", 100).waited_for
    assert gap("e", 120).waited_for == "weights v2"
    assert "h-s0" in gap("e", 131).waited_for
    assert gap("w", 130).end == pytest.approx(lanes.length)  # the trainer: nothing followed
