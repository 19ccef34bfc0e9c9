"""*Timeline*: frames of windows, their bounds, the trace file, and hostile names."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from schemas.event import Event
from schemas.rollouts import Timings
from serve_apps.http.console import pace
from serve_apps.http.console.frame import FRAME, TYPES
from serve_apps.http.console.views.timeline import TimelineHead
from slime_events.analysis.query import tables_of
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import ENGINE
from tests.console.served import URL, Memory, client_of, small
from tests.console.test_hostile_texts import TEXTS
from tests.lineage import opened

pytestmark = pytest.mark.asyncio(loop_scope="package")


def decoded(frame: bytes) -> tuple[TimelineHead, dict[str, np.ndarray[Any, Any]]]:
    """Return head and arrays of a frame, read as a client reads them."""
    length = int.from_bytes(frame[:4], "little")
    head, at = msgspec.json.decode(frame[4 : 4 + length], type=TimelineHead), 4 + length
    arrays = {}
    for name, (kind, count) in head.arrays.items():
        assert at % 8 == 0
        arrays[name] = np.frombuffer(frame, TYPES[kind], count, at)
        at += -(-arrays[name].nbytes // 8) * 8
    assert at == len(frame)
    return head, arrays


async def _window(client: httpx.AsyncClient, **query: object) -> tuple[TimelineHead, dict[str, np.ndarray[Any, Any]]]:
    answer = await client.get(f"{URL}/timeline", params=query)
    assert (answer.status_code, answer.headers["content-type"]) == (200, FRAME), answer.text
    return decoded(answer.content)


async def test_the_whole_run_is_a_frame(client: httpx.AsyncClient) -> None:
    head, arrays = await _window(client)
    assert next((lane.role, lane.name) for lane in head.lanes) == ("waiting", "queue")
    assert ("engine", ENGINE) in {(lane.role, lane.name) for lane in head.lanes}
    assert sum(lane.intervals for lane in head.lanes) == len(arrays["bar_lane"]) == len(head.samples)
    assert not any(lane.dense for lane in head.lanes)
    assert (arrays["bar_start"] <= arrays["bar_end"]).all()
    assert (head.begin, head.end) == (0.0, head.length)


async def test_a_window_has_the_rows_of_its_query(client: httpx.AsyncClient) -> None:
    whole, _ = await _window(client)
    query: dict[str, object] = {"from": whole.length * 0.3, "to": whole.length * 0.4}
    head, arrays = await _window(client, **query)
    async with tables_of(await opened.small()) as tables:
        rows = (await tables.sql(head.source.sql)).arrow()
    works = [head.works[work] for work in arrays["bar_work"]]
    assert sorted(works) == sorted(rows["work"].to_pylist())
    assert 0 < len(works) < sum(lane.intervals for lane in whole.lanes)
    assert sorted(filter(None, head.samples)) == sorted(filter(None, rows["sample"].to_pylist()))


@pytest.mark.parametrize(
    ("query", "status"),
    [({"from": 5, "to": 1}, 400), ({"from": "nan"}, 400), ({"to": "inf"}, 400), ({"from": "x"}, 422),
     ({"parts": 0}, 422), ({"parts": 10**9}, 422)],
)  # fmt: skip
async def test_a_window_that_is_none_is_refused(
    client: httpx.AsyncClient, query: dict[str, str | int], status: int
) -> None:
    assert (await client.get(f"{URL}/timeline", params=query)).status_code == status


async def test_a_window_without_length_shows_a_moment(client: httpx.AsyncClient) -> None:
    head, _ = await _window(client, **{"from": 1.0, "to": 1.0})
    assert head.end > head.begin == 1.0


async def test_the_trace_file_has_the_same_intervals(client: httpx.AsyncClient) -> None:
    head, arrays = await _window(client)
    answer = await client.get(f"{URL}/timeline/trace")
    assert answer.headers["content-disposition"].startswith("attachment")
    events = [event for event in answer.json()["traceEvents"] if event["ph"] != "M"]
    assert sorted(event["name"] for event in events) == sorted(head.works[work] for work in arrays["bar_work"])


async def test_the_lanes_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "REST", -1.0)  # no pause
    source = await small()
    async with client_of(source) as client:
        before, _ = await _window(client)
        (run,) = source.runs.values()
        assert isinstance(run.log, MemoryLog)
        await made.say(run.log, made.submitted("n"), made.requested("n-s0"), made.failed("n-s0", engine="e"))
        after, _ = await _window(client)
    assert sum(lane.intervals for lane in after.lanes) == sum(lane.intervals for lane in before.lanes) + 1


async def test_hostile_names_are_texts() -> None:
    events: list[Event] = [made.started()]
    short = [text[:100] for text in TEXTS]
    for number, text in enumerate(short):
        events += [made.submitted(f"g{number}"), made.requested(f"g{number}-s0")]
        timings = Timings(generating=1.0)
        events.append(made.completed(f"g{number}-s0", [1], [-0.5], length=1, engine=text, timings=timings))
    async with client_of(Memory({"r": await opened.opened(events, "r")})) as client:
        answer = await client.get("/api/runs/r/timeline")
        trace = await client.get("/api/runs/r/timeline/trace")
    head, _ = decoded(answer.content)
    assert {lane.name for lane in head.lanes if lane.role == "engine"} == set(short)
    names = {event["args"]["name"] for event in trace.json()["traceEvents"] if event["name"] == "process_name"}
    assert names >= set(short)
