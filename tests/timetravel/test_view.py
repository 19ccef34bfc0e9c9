"""Test the view of a moment, and of the way from one to another."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from schemas.errors import InvalidValue
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition, parse_position
from slime_events.analysis.timetravel.moment_diff import view_difference
from slime_events.analysis.timetravel.moment_view import EngineView, LaterEngine, MomentView, view_moment
from slime_events.analysis.timetravel.read_moment import look_ahead
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.app.cli.main import run_command
from slime_events.model.json_values import plain
from slime_events.model.run_status import RunStatus
from tests import made
from tests.cli.small_run import ENGINE, REJECTED, events, finished, recorded, small_run

CHUNK = next(i for i, event in enumerate(events(), 1) if type(event).__name__ == "RolloutProgressed")


@pytest.fixture
async def timeline(tmp_path: Path) -> Timeline:
    return await Timeline(await small_run(), tmp_path).open()


async def _view(timeline: Timeline, text: str) -> MomentView:
    return view_moment(await timeline.seek(parse_position(text)), timeline.end)


async def test_an_engine_in_the_midst_of_a_rollout(timeline: Timeline) -> None:
    view = await _view(timeline, str(CHUNK))
    (engine,) = view.engines
    (rollout,) = engine.rollouts
    assert (engine.engine, engine.version) == (ENGINE, 1)
    assert (rollout.sample, rollout.tokens, rollout.oldest, rollout.newest) == ("inbox-aa-s1", 2, 0, 0)
    assert rollout.seconds == pytest.approx(0.1)
    (group,) = view.groups
    assert (group.phase, group.samples) == ("requested", {"graded": 1, "running": 1})
    assert group.behind == 1, "its oldest token is of version 0, and step 1 would train it"
    assert view.staleness.behind == {1: 1}
    assert view.backpressure.open == 1
    assert view.waits_for == "1 samples to be generated"
    after = await _view(timeline, str(CHUNK + 1))
    assert after.engines[0].rollouts == after.queued == ()
    assert after.waits_for == "1 samples to be graded"


async def test_what_the_log_said_only_later(timeline: Timeline) -> None:
    log = await small_run()
    request = next(r.position for r in log.records if r.envelope.type == "rollout.requested")
    moment = await timeline.seek(LogPosition(Anchor.POSITION, request))
    (queued,) = view_moment(moment, timeline.end).queued
    assert (queued.engine, queued.begun) == (None, False)
    (engine,) = view_moment(moment, timeline.end, await look_ahead(log, moment)).engines
    (rollout,) = engine.rollouts
    assert (rollout.engine, rollout.begun, rollout.said_later) == (ENGINE, True, True)
    too_soon = {rollout.sample: LaterEngine(ENGINE, moment.context.at + 1)}
    (waits,) = view_moment(moment, timeline.end, too_soon).queued
    assert (waits.engine, waits.begun) == (ENGINE, False)


async def test_decisions_with_reasons_and_figures(timeline: Timeline) -> None:
    view = await _view(timeline, "step:0")
    rejected = next(decision for decision in view.decisions if decision.about == REJECTED)
    assert (rejected.type, rejected.reason) == ("group.rejected", "filter: nonzero_std: zero_std_0.0")
    assert rejected.figures == {"mean": 0.0, "std": 0.0}
    assert [decision.type for decision in view.decisions[-2:]] == ["batch.sealed", "step.committed"]


async def test_the_end_waits_for_nothing(timeline: Timeline) -> None:
    view = await _view(timeline, "-0s")
    assert (view.phase, view.position, view.waits_for) == ("finished", timeline.end, None)
    assert view.engines == (EngineView(engine=ENGINE, version=2, rollouts=()),)


async def test_a_run_without_a_launcher_waits_for_nothing(timeline: Timeline) -> None:
    moment = await timeline.seek(LogPosition(Anchor.POSITION, CHUNK))
    view = view_moment(moment, timeline.end, status=RunStatus.KILLED)
    assert (view.phase, view.waits_for) == ("killed", None)


async def test_a_view_keeps_its_values_while_the_moment_is_folded_on(timeline: Timeline) -> None:
    moment = await timeline.seek(LogPosition(Anchor.POSITION, CHUNK))
    view = view_moment(moment, timeline.end)
    before = msgspec.json.encode(plain(view))
    for recorded_event in (await small_run()).records[CHUNK:]:
        moment.apply(recorded_event)
    assert msgspec.json.encode(plain(view)) == before


async def test_what_a_step_changed(timeline: Timeline) -> None:
    was, now = [
        view_moment(await timeline.seek(place), timeline.end)
        for place in (LogPosition(Anchor.POSITION, CHUNK), LogPosition(Anchor.STEP, 1))
    ]
    assert view_difference(was, now) == view_difference(now, was), "the earlier is the earlier"
    changes = view_difference(was, now)
    assert changes.changed["version"] == (1, 2)
    assert changes.groups.closed == {"inbox-aa": "trained"}
    assert changes.groups.opened == {}
    assert (changes.counts["groups_trained"], changes.verdicts_left_out) == (2, 0)
    assert [decision.about for decision in changes.decisions] == ["inbox-aa", "train-0-000003", "step 1", "step 1"]
    without_decisions = view_difference(msgspec.structs.replace(now, decisions=()), was)
    assert without_decisions.groups.closed == {"inbox-aa": "trained or rejected"}


async def test_groups_that_opened_or_moved(timeline: Timeline) -> None:
    submitted = next(i for i, event in enumerate(events(), 1) if getattr(event, "group", "") == "inbox-aa")
    opened = view_difference(await _view(timeline, str(submitted - 1)), await _view(timeline, str(submitted)))
    assert opened.groups.opened == {"inbox-aa": "submitted"}
    moved = view_difference(await _view(timeline, str(submitted)), await _view(timeline, str(CHUNK))).groups.moved
    (was, now) = moved["inbox-aa"]
    assert (was.phase, was.samples, was.tokens) == ("submitted", {}, 0)
    assert (now.phase, now.samples, now.tokens) == ("requested", {"graded": 1, "running": 1}, 5)


async def test_the_json_of_a_difference_names_both_positions(timeline: Timeline) -> None:
    changes = plain(view_difference(await _view(timeline, "step:0"), await _view(timeline, "step:1")))
    assert list(changes)[:3] == ["run", "from", "to"]
    assert changes["changed"]["version"] == [1, 2]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return made.archived(tmp_path, recorded(finished(list(events()))))


def test_the_command(archive: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["show", archive, "--at", str(CHUNK + 2), "--step", "-2"]) == 0
    out = capsys.readouterr().out
    assert f"position   {CHUNK} of " in out
    assert "inbox-aa-s1  engine-1       2  v0" in out
    assert run_command(["show", archive, "--at", "-0s", "--diff", "step:0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"]["phase"] == ["running", "finished"]
    assert run_command(["show", archive, "--at", "step:0", "--diff", "step:1"]) == 0
    assert "groups_trained     +2" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--diff", "5"], ["--at", "5", "--group", "x"], ["--at", "tomorrow"]])
def test_what_cannot_be_asked(archive: str, words: list[str]) -> None:
    with pytest.raises(InvalidValue):
        run_command(["show", archive, *words])
