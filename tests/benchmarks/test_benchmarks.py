"""The benchmarks run: their arithmetic is right and tiny configurations give finite figures. Speed is not judged."""

from __future__ import annotations

import importlib
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import console, flood
from benchmarks.critical_path import Work, covered, merge, step_times
from benchmarks.figure import Better, Figure, Row
from benchmarks.length_bias import fastest_of_each_draw, ks_distance
from benchmarks.long_tail import length_of
from benchmarks.pipeline import bubble
from benchmarks.processes import Watch, proportional_bytes
from benchmarks.registry import LONG, NAMES, chosen
from benchmarks.table import HEAD, cells, markdown, text
from benchmarks.wide_run import fill_wide
from schemas.event import Event
from schemas.rollouts import RolloutCompleted, Timings, WeightSpan
from slime_events.analysis.query import open_tables
from slime_events.analysis.query.cache import FOLDER
from storage.log import Recorded
from tests import made

MS = 1_000_000


def _recorded(at_ms: int, event: Event) -> Recorded:
    return made.recorded(event, at=at_ms * MS, first=at_ms)[0]


def _completed(sample: str, version: int, generating: float) -> RolloutCompleted:
    return made.completed(sample, spans=(WeightSpan(0, 1, version),), timings=Timings(generating=generating))


def test_a_step_is_split_into_work_and_what_no_work_covers() -> None:
    log = [
        _recorded(100, made.committed(0, seconds={"train": 0.05})),
        _recorded(120, made.activated(1, seconds=0.010)),
        _recorded(170, _completed("g-s0", 1, 0.065)),  # held its request since 105, the weights since 120
        _recorded(180, _completed("g-s1", 1, 0.030)),
        _recorded(190, made.assigned("g-s1", seconds=0.002)),
        _recorded(250, made.committed(1, seconds={"batch": 0.01, "train": 0.04})),
    ]
    (step,) = step_times(log)
    assert step.step == 1
    assert step.wall == pytest.approx(0.150)
    expected = {Work.ACTIVATE: 0.010, Work.GENERATE: 0.060, Work.GRADE: 0.002, Work.TRAIN: 0.050}
    assert step.work == pytest.approx(expected)
    # 100-110 to the engine, 180-188 to the grader, 190-200 to the trainer
    assert step.control == pytest.approx(0.028)


def test_intervals() -> None:
    assert merge([(5, 7), (1, 3), (2, 4), (4, 5)]) == [(1, 7)]
    assert covered([(1, 4), (6, 9)], 3, 7) == 2


def test_a_figure_knows_whether_it_meets_its_target() -> None:
    assert Figure(name="a", value=2.0, unit="x", target=1.0).met is True
    assert Figure(name="a", value=2.0, unit="x", target=1.0, better=Better.LOWER).met is False
    assert Figure(name="a", value=2.0, unit="x").met is None
    assert Figure(name="a", value=None, unit="x", target=1.0, note="not installed").met is False


def test_the_tables_have_a_cell_for_every_heading() -> None:
    figure = Figure(name="a|b", value=1234.5, unit="/s", target=2000.0, note="so")
    row = Row(benchmark="n", figure=figure, load=(0.5, 1.25), cores=2, seconds=1.0)
    assert cells(row) == ("a|b", "1,234", "/s", ">= 2,000", "NO", "0.5, 1.2", "2", "so")
    assert text([row]).splitlines()[0].split()[0] == HEAD[0]
    assert [line.count("|") for line in markdown([row]).splitlines()] == [len(HEAD) + 1] * 3
    assert msgspec.json.decode(msgspec.json.encode([row]), type=list[Row]) == [row]


def test_every_name_is_a_module_that_measures() -> None:
    for name in NAMES:
        assert callable(importlib.import_module(f"benchmarks.{name}").measure)


def test_cpu_and_memory_are_those_of_the_process() -> None:
    assert proportional_bytes(os.getpid()) > 1_000_000
    watch = Watch(os.getpid())
    watch.cpu = [(0, {"engine": 1.0}), (10, {"engine": 2.0, "nats": 1.0}), (20, {"engine": 4.0, "nats": 1.0})]
    assert watch.cpu_between(5, 15) == {"engine": 1.5, "nats": 0.5}


def test_the_distance_of_two_distributions() -> None:
    assert ks_distance([1, 2, 3], [3, 2, 1]) == 0
    assert ks_distance([1, 2], [3, 4]) == 1
    assert ks_distance([1, 2, 3, 4], [1, 2]) == 0.5


def _one_forward_one_backward(first: int, count: int) -> list[tuple[bool, int]]:
    order = [(True, number) for number in range(first)]
    for number in range(count - first):
        order += [(True, first + number), (False, number)]
    return order + [(False, number) for number in range(count - first, count)]


def test_the_bubble_is_the_idle_share_of_the_stages() -> None:
    for count in (2, 4, 9):
        order = [_one_forward_one_backward(1, count), _one_forward_one_backward(0, count)]
        equal = [[1.0 if is_forward else 2.0 for is_forward, _ in passes] for passes in order]
        assert bubble(order, equal) == pytest.approx(1 / (count + 1))
        slow = [[3 * seconds for seconds in equal[0]], equal[1]]
        assert bubble(order, slow) > 0.3, "the second stage waits for the first one"
        waiting = [_one_forward_one_backward(0, count)] * 2
        assert bubble(waiting, equal) == pytest.approx(0.5), "each micro batch alone"
    with pytest.raises(AssertionError, match="does not come"):
        bubble([[(False, 0), (True, 0)], [(True, 0), (False, 0)]], [[1.0, 1.0]] * 2)


def test_a_flood_comes_and_goes() -> None:
    """Phases take turns; the first step of each is of both and not counted."""
    ways = [flood.way_of(step) for step in range(flood.FIRST, flood.STEPS)]
    assert ways[: flood.PHASE] == [None] * flood.PHASE
    assert {way: ways.count(way) for way in flood.WAYS} == dict.fromkeys(flood.WAYS, 2 * flood.PHASE)
    assert not flood.is_counted(flood.FIRST + flood.PHASE)
    log = []
    for step in range(flood.STEPS):
        slow = 2 if flood.way_of(step) == "nats" else 1
        log.append(_recorded((log[-1].envelope.at // MS if log else 0) + 100 * slow, made.committed(step)))
    assert [round(figure.value or 0, 6) for figure in flood.figures(log, [])] == [1.0, 2.0]


def test_what_takes_an_hour_is_asked_for() -> None:
    assert set(chosen(None, long=False)) == set(NAMES) - set(LONG)
    assert chosen(None, long=True) == list(NAMES)
    assert chosen(["recovery"], long=False) == ["recovery"]


def test_lengths_have_a_long_tail() -> None:
    lengths = sorted(length_of(seed, 100, 1 << 20) for seed in range(4000))
    assert lengths[2000] == pytest.approx(100, rel=0.06)
    assert lengths[3960] == pytest.approx(1000, rel=0.2)
    assert length_of(1, 100, 3) <= 3


def test_the_rule_that_throws_surplus_away_keeps_the_short_groups() -> None:
    """Two draws of 16 groups of 4, of lengths 1 to 16 and 17 to 32."""
    lengths = [length for length in range(1, 33) for _ in range(4)]
    assert sorted(set(fastest_of_each_draw(lengths))) == [*range(1, 9), *range(17, 25)]


TINY = [
    ("durable_append", {"rollouts": 20, "rewards": 50}),
    ("cluster_append", {"rollouts": 20, "rewards": 50, "rounds": 1}),
    ("leases", {"engines": 2, "requests": 3, "seconds": 0.5}),
    ("prompts", {"lines": 500, "takes": 5}),
    ("ingest", {"count": 500}),
    ("span", {"steps": 2}),
    ("agent_prompts", {"turns": (1, 3)}),
    ("agent_latency", {"sessions": 2, "long": 0, "first_ms": 1.0, "engines": ("scripted",)}),
    ("chunk_cost", {"responses": 4, "length": 64, "turns": 1}),
    ("trainer_idle", {"steps": 3, "train_s": 0.01}),
    ("length_bias", {"steps": 4}),
    ("resume", {"events": 500}),
    ("lineage", {"events": 500}),
    ("fold", {"events": 500}),
    ("decide", {"groups": 64, "cycles": 20}),
    ("query", {"events": 500}),
    ("rescore", {"steps": 3}),
]


@pytest.mark.parametrize(("name", "sizes"), [*TINY, ("trainer", {"steps": 1})])
def test_tiny_runs_give_finite_figures(name: str, sizes: dict[str, Any]) -> None:
    figures: list[Figure] = importlib.import_module(f"benchmarks.{name}").measure(**sizes)
    assert figures
    for figure in figures:
        assert figure.value is not None, figure.note
        assert math.isfinite(figure.value)


def test_without_a_chromium_the_pages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "chromium", lambda: None)
    figures = console.measure()
    assert [figure.met for figure in figures] == [False] * len(figures) != []
    assert all(figure.value is None and figure.note for figure in figures)


def test_the_wide_run_has_its_samples_and_intervals(tmp_path: Path) -> None:
    archive = fill_wide(tmp_path, 128)
    with open_tables(str(archive), cache=tmp_path / "cache" / FOLDER) as tables:
        assert tables.sql("SELECT count(*), count(reward), count(step) FROM samples").rows() == [(128, 128, 128)]
        works = dict(tables.sql("SELECT work, count(*) FROM intervals GROUP BY ALL").rows())
    assert (works["generate"], works["grade"], works["train"], works["batch"]) == (128, 128, 2, 16)
