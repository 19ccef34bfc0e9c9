"""Lanes, windows and the trace file, against readings of the same rows that count one by one."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slime_events.analysis.lanes import window as windows
from slime_events.analysis.lanes.chrome_trace import chrome_trace
from slime_events.analysis.lanes.lane import LaneName
from slime_events.analysis.lanes.lanes import Lanes
from slime_events.analysis.lanes.window import window_of

START = datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None)
TIME = pa.timestamp("us")


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Random intervals of several workers, some of them without a length."""
    random = np.random.default_rng(seed)
    kinds = [("waiting", "", "queue"), ("engine", "e0", "generate"), ("engine", "e0", "load"),
             ("engine", "e1", "generate"), ("trainer", "t", "train"), ("archivist", "a", "archive")]  # fmt: skip
    rows = []
    for number in range(count):
        role, worker, work = kinds[random.integers(len(kinds))]
        begin = int(random.integers(0, 60_000_000))
        length = 0 if work == "archive" else int(random.exponential(700_000))
        rows.append(
            {
                "position": number, "role": role, "worker": worker, "work": work,
                "started": START + timedelta(microseconds=begin),
                "ended": START + timedelta(microseconds=begin + length),
                "sample": f"g{number % 7}-s{number}" if role != "trainer" else None, "group_id": f"g{number % 7}",
                "step": number if role == "trainer" else None, "version": number % 5,
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row["started"], row["ended"], row["position"]))


def _lanes(rows: list[dict[str, Any]]) -> Lanes:
    texts = dict.fromkeys(("role", "worker", "work", "sample", "group_id"), pa.string())
    numbers = dict.fromkeys(("position", "step", "version"), pa.int64())
    return Lanes.of(pa.Table.from_pylist(rows, pa.schema(texts | numbers | {"started": TIME, "ended": TIME})))


def _seconds(rows: list[dict[str, Any]], lane: LaneName) -> list[tuple[float, float, str]]:
    """Start, end and work of the rows of a lane [s]."""
    origin = min(row["started"] for row in rows)
    return [
        ((row["started"] - origin).total_seconds(), (row["ended"] - origin).total_seconds(), row["work"])
        for row in rows
        if lane == LaneName(row["role"], row["worker"] or row["work"])
    ]


@pytest.mark.parametrize(("begin", "end"), [(0.0, 60.0), (10.0, 11.0), (30.0, 30.001), (-5.0, 2.0), (58.0, 99.0)])
def test_a_window_has_what_a_count_of_all_rows_has(begin: float, end: float, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _rows(600, seed=1)
    lanes = _lanes(rows)
    for merged in (False, True):
        monkeypatch.setattr(windows, "LANE_BARS", -1 if merged else 10_000)
        window = window_of(lanes, begin, end, 50)
        assert window.dense == [merged] * len(lanes.every)
        for index, lane in enumerate(lanes.every):
            of_lane = _seconds(rows, lane.name)
            touched = [entry for entry in of_lane if entry[1] >= begin and entry[0] <= end]
            assert window.counts[index] == len(touched)
            if not merged:
                chosen = window.bars.lane == index
                assert sorted(window.bars.start[chosen]) == pytest.approx(sorted(entry[0] for entry in touched))
            assert window.busy[index] == pytest.approx(_busy(of_lane, begin, end), abs=1e-6)
            for work in {entry[2] for entry in of_lane} if merged else ():
                assert _means(window, lanes, index, work) == pytest.approx(
                    _covered(of_lane, work, begin, end), abs=1e-6
                )


def _busy(intervals: list[tuple[float, float, str]], begin: float, end: float) -> float:
    bounds = sorted({begin, end, *(min(max(at, begin), end) for entry in intervals for at in entry[:2])})
    return sum(
        b - a for a, b in itertools.pairwise(bounds) if any(s <= (a + b) / 2 <= e for s, e, _ in intervals)
    )  # fmt: skip


def _covered(intervals: list[tuple[float, float, str]], work: str, begin: float, end: float) -> list[float]:
    edges = np.linspace(begin, end, 51)
    return [
        sum(max(0.0, min(e, b) - max(s, a)) for s, e, kind in intervals if kind == work) / (b - a)
        for a, b in itertools.pairwise(edges)
    ]


def _means(window: windows.Window, lanes: Lanes, index: int, work: str) -> list[float]:
    cells, means = window.cells, np.zeros(50)
    chosen = (cells.lane == index) & (cells.work == lanes.works.index(work))
    means[cells.cell[chosen]] = cells.mean[chosen]
    return list(means)


def test_intervals_on_a_track_do_not_overlap() -> None:
    for lane in _lanes(_rows(2000, seed=2)).every:
        free: dict[int, float] = defaultdict(lambda: -1.0)
        every = np.arange(len(lane.starts))
        tracks = lane.tracks(every)
        for first in (0, 100, 300):
            part = every[first : first + 50]
            assert list(lane.tracks(part)) == list(tracks[part])  # a window has the tracks of the whole
        for start, end, track in zip(lane.starts, lane.ends, tracks, strict=True):
            assert start >= free[track]
            free[track] = end
        assert lane.depth == len(free) or set(lane.ends - lane.starts) == {0.0}


def test_a_window_is_bounded() -> None:
    lanes = _lanes(_rows(20_000, seed=3))
    window = window_of(lanes, 0.0, 60.0, 100)
    assert len(window.bars.lane) <= windows.MOST_BARS
    assert len(window.cells.lane) <= 100 * len(lanes.works) * len(lanes.every)
    assert sum(window.counts) == 20_000
    assert max(len([gap for gap in window.idle if gap.lane == lane]) for lane in range(6)) <= windows.MOST_IDLE + 1


def test_gaps_are_those_of_a_count() -> None:
    rows = _rows(300, seed=4)
    lanes = _lanes(rows)
    window = window_of(lanes, 0.0, lanes.length, 10_000)
    for index, lane in enumerate(lanes.every):
        reached, gaps = -1.0, []
        for start, end, _ in sorted(_seconds(rows, lane.name)):
            if 0 <= reached < start - 3 * lanes.length / 10_000:
                gaps.append((reached, start))
            reached = max(reached, end)
        found = [(gap.start, gap.end) for gap in window.idle if gap.lane == index]
        if lane.name.role not in ("engine", "trainer"):
            assert not found
            continue
        if lanes.length > reached:
            gaps.append((reached, lanes.length))
        longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[: windows.MOST_IDLE]
        assert set(longest) - {gaps[-1]} <= {tuple(map(float, gap)) for gap in found} or np.allclose(
            sorted(found)[: len(gaps)], sorted(gaps)
        )


def test_a_trace_file_has_every_interval_and_none_overlap_on_a_thread() -> None:
    rows = _rows(900, seed=5)
    lanes = _lanes(rows)
    trace = json.loads(b"".join(chrome_trace(lanes, "r", 0.0, lanes.length)))
    events = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    assert len(events) == len(rows)
    assert {event["ph"] for event in events} == {"X", "i"}
    threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event.get("dur", 0)))
    for spans in threads.values():
        assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(sorted(spans)))
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert named == threads.keys()
    assert trace["otherData"]["run"] == "r"


def test_a_window_of_a_trace_file_has_only_what_it_touches() -> None:
    rows = _rows(900, seed=6)
    lanes = _lanes(rows)
    events = json.loads(b"".join(chrome_trace(lanes, "r", 10.0, 12.0)))["traceEvents"]
    touched = sum(lane.count(10.0, 12.0) for lane in lanes.every)
    assert sum(event["ph"] != "M" for event in events) == touched > 0


def test_a_run_without_intervals_has_no_lanes() -> None:
    lanes = _lanes([])
    assert lanes.every == ()
    assert len(window_of(lanes, 0.0, 1.0, 10).bars.lane) == 0
    assert json.loads(b"".join(chrome_trace(lanes, "r", 0.0, 1.0)))["traceEvents"] == []
