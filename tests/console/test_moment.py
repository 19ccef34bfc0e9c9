"""*Time machine*: the run at a position, the difference of two positions, and which of them are read again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from schemas.steps import StepCommitted
from serve_apps.http.console import moments
from serve_apps.http.console.moments import Moments
from slime_events.analysis.query import tables_of
from slime_events.analysis.timetravel.moment import Moment
from slime_events.analysis.timetravel.moment_diff import view_difference
from slime_events.analysis.timetravel.moment_view import MomentView, view_moment
from slime_events.analysis.timetravel.read_moment import open_timeline, read_moment
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.state.run import RunState
from slime_events.model.json_values import plain
from slime_events.model.run_status import RunStatus
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import ENGINE, RUN, events, finished, recorded
from tests.console.served import URL, Memory, client_of, get
from tests.lineage import opened

pytestmark = pytest.mark.asyncio(loop_scope="package")
RECORDS = recorded(finished(events()))
END = len(RECORDS)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _folded(position: int) -> MomentView:
    """The run at a position, folded from its first event."""
    moment = Moment(RunState(run=RUN))
    for record in RECORDS[:position]:
        moment.apply(record)
    return view_moment(moment, END)


def _json(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(plain(value)))


@pytest.mark.parametrize("position", [1, 17, END // 2, END - 1, END])
async def test_a_moment_is_the_fold_up_to_there(client: httpx.AsyncClient, position: int) -> None:
    page = await get(client, f"{URL}/moment", at=str(position))
    expected = _json(_folded(position))
    expected["decisions"] = expected["decisions"][-20:]
    known_later = ("queued", "engines")  # the log names an engine after the moment at which it begins
    assert {k: v for k, v in page["moment"].items() if k not in known_later} == {
        k: v for k, v in expected.items() if k not in known_later
    }
    rollouts = [*page["moment"]["queued"], *(r for e in page["moment"]["engines"] for r in e["rollouts"])]
    assert len(rollouts) == len(expected["queued"]) + sum(len(e["rollouts"]) for e in expected["engines"])
    assert page["difference"] is None
    assert page["events"][-1]["position"] == position
    assert page["events"][-1]["type"] == RECORDS[position - 1].envelope.type
    assert shlex.split(page["source"]["command"]) == ["slime-events", "show", RUN, "--at", str(position)]


@pytest.mark.parametrize(("at", "other"), [(5, END), (END, 5), (30, 29), (30, 30)])
async def test_a_difference_is_that_of_the_two_folds(client: httpx.AsyncClient, at: int, other: int) -> None:
    page = await get(client, f"{URL}/moment", at=str(at), other=str(other))
    assert page["difference"] == _json(view_difference(_folded(at), _folded(other)))
    was, now = sorted((at, other))
    command = shlex.split(page["difference_source"]["command"])
    assert command == ["slime-events", "show", RUN, "--at", str(was), "--diff", str(now)]
    async with tables_of(await opened.small()) as tables:
        rows = (await tables.sql(page["difference_source"]["sql"])).arrow().to_pylist()
        listed = (await tables.sql(page["source"]["sql"])).arrow().to_pylist()
    assert [row["position"] for row in rows] == list(range(was + 1, now + 1))
    names = ("position", "type", "entity", "producer")
    assert [[row[name] for name in names] for row in listed] == [[e[name] for name in names] for e in page["events"]]


async def test_a_position_in_words_is_that_of_the_log(client: httpx.AsyncClient) -> None:
    commits = {r.envelope.event.step: r.position for r in RECORDS if isinstance(r.envelope.event, StepCommitted)}
    listed = await get(client, f"{URL}/positions")
    assert (listed["end"], dict(zip(listed["steps"], listed["positions"], strict=True))) == (END, commits)
    assert (await get(client, f"{URL}/moment", at="step:1"))["moment"]["position"] == commits[1]
    assert (await get(client, f"{URL}/moment", at="+1s"))["moment"]["position"] == 11  # an event each 0.1 s
    assert (await get(client, f"{URL}/moment"))["moment"]["position"] == END


@pytest.mark.parametrize(
    ("at", "status"),
    [
        ("", 400), ("x", 400), ("-1", 400), ("1e3", 400), ("\u0663", 400), ("step:x", 400), ("9999-99-99", 400),
        ("0001-01-01T00:00", 400), ("0001-01-01T00:00:00+23:00", 404), ("0", 404),
        (str(END + 1), 404), ("9" * 60, 404), ("step:7", 404),
        ("step:" + "9" * 50, 404), ("2001-01-01", 404), ("1" * 65, 422),
    ],
)  # fmt: skip
async def test_what_is_no_position_is_refused(client: httpx.AsyncClient, at: str, status: int) -> None:
    for query in ({"at": at}, {"at": "1", "other": at}):
        answer = await client.get(f"{URL}/moment", params=query)
        assert (answer.status_code, isinstance(answer.json()["error"], str)) == (status, True)


async def test_a_moment_of_a_growing_run_gets_the_later_events() -> None:
    log = [made.started(), made.submitted("g"), made.requested("g-s0")]
    run = await opened.opened(log, "r")
    assert isinstance(run.log, MemoryLog)
    async with client_of(Memory({"r": run}, on=True)) as client:
        before = (await get(client, "/api/runs/r/moment", at="3"))["moment"]
        assert (before["end"], before["queued"][0]["engine"]) == (3, None)
        await made.say(run.log, made.progressed("g-s0", [10], log_probs=[-0.5], engine=ENGINE))
        after = (await get(client, "/api/runs/r/moment", at="3"))["moment"]
        assert (after["end"], after["queued"][0]["engine"]) == (4, ENGINE)


async def test_a_position_that_stays_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    async def counted(*arguments: Any) -> Any:
        reads.append(arguments[2])
        return await read_moment(*arguments)

    async def status(_: OpenedRun) -> RunStatus:
        return RunStatus.FINISHED

    monkeypatch.setattr(moments, "read_moment", counted)
    monkeypatch.setattr(moments, "KEPT", 2)
    run = await opened.small()
    kept = Moments(run)
    for position in (7, 8, 7, 9, 7, 8):
        assert (await kept.at(str(position), status)).view.position == position
    assert reads == ["7", "8", "9", "8"]  # 9 took the place of 8, which was used before 7
    alone = await read_moment(run, await open_timeline(run), "7", status)
    assert (await kept.at("7", status)).view == alone.view
