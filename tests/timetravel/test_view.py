"""What is said of a moment, and of the way from one to another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InvalidValue
from slime_events.analysis.timetravel.log_position import Anchor, LogPosition, parse_position
from slime_events.analysis.timetravel.timeline import Timeline
from slime_events.analysis.timetravel.view import LaterEngine, difference, facts_of, look_ahead
from slime_events.app.cli.main import run_command
from tests import made
from tests.cli.small_run import ENGINE, REJECTED, events, finished, recorded, small_run

CHUNK = next(i for i, event in enumerate(events(), 1) if type(event).__name__ == "RolloutProgressed")


@pytest.fixture
async def timeline(tmp_path: Path) -> Timeline:
    return await Timeline(await small_run(), tmp_path).open()


async def _facts(timeline: Timeline, said: str) -> dict[str, Any]:
    return facts_of(await timeline.seek(parse_position(said)), timeline.end)


async def test_an_engine_in_the_midst_of_a_rollout(timeline: Timeline) -> None:
    facts = await _facts(timeline, str(CHUNK))
    (engine,) = facts["engines"]
    (rollout,) = engine["rollouts"]
    assert (engine["engine"], engine["version"]) == (ENGINE, 1)
    assert (rollout["sample"], rollout["tokens"], rollout["oldest"], rollout["newest"]) == ("inbox-aa-s1", 2, 0, 0)
    assert rollout["seconds"] == pytest.approx(0.1)
    (group,) = facts["groups"]
    assert (group["phase"], group["samples"]) == ("requested", {"graded": 1, "running": 1})
    assert group["behind"] == 1, "its oldest token is of version 0, and step 1 would train it"
    assert facts["staleness"]["behind"] == {"1": 1}
    assert facts["backpressure"]["open"] == 1
    assert facts["waits_for"] == "1 samples to be generated"
    after = await _facts(timeline, str(CHUNK + 1))
    assert after["engines"][0]["rollouts"] == after["queued"] == []
    assert after["waits_for"] == "1 samples to be graded"


async def test_what_the_log_said_only_later(timeline: Timeline) -> None:
    log = await small_run()
    request = next(r.position for r in log.records if r.envelope.type == "rollout.requested")
    moment = await timeline.seek(LogPosition(Anchor.POSITION, request))
    (queued,) = facts_of(moment, timeline.end)["queued"]
    assert (queued["engine"], queued["begun"]) == (None, False)
    (engine,) = facts_of(moment, timeline.end, await look_ahead(log, moment))["engines"]
    (rollout,) = engine["rollouts"]
    assert (rollout["engine"], rollout["begun"], rollout["said_later"]) == (ENGINE, True, True)
    too_soon = {rollout["sample"]: LaterEngine(ENGINE, moment.context.at + 1)}
    (waits,) = facts_of(moment, timeline.end, too_soon)["queued"]
    assert (waits["engine"], waits["begun"]) == (ENGINE, False)


async def test_decisions_with_reasons_and_figures(timeline: Timeline) -> None:
    facts = await _facts(timeline, "step:0")
    rejected = next(d for d in facts["decisions"] if d["about"] == REJECTED)
    assert (rejected["type"], rejected["reason"]) == ("group.rejected", "filter: nonzero_std: zero_std_0.0")
    assert rejected["figures"] == {"mean": 0.0, "std": 0.0}
    assert [d["type"] for d in facts["decisions"][-2:]] == ["batch.sealed", "step.committed"]


async def test_the_end_waits_for_nothing(timeline: Timeline) -> None:
    facts = await _facts(timeline, "-0s")
    assert (facts["phase"], facts["position"], facts["waits_for"]) == ("finished", timeline.end, None)
    assert facts["engines"] == [{"engine": ENGINE, "version": 2, "rollouts": []}]


async def test_what_a_step_changed(timeline: Timeline) -> None:
    was, now = [
        facts_of(await timeline.seek(place), timeline.end)
        for place in (LogPosition(Anchor.POSITION, CHUNK), LogPosition(Anchor.STEP, 1))
    ]
    assert difference(was, now) == difference(now, was), "the earlier is the earlier"
    changed = difference(was, now)
    assert changed["changed"]["version"] == [1, 2]
    assert changed["groups"]["went"] == {"inbox-aa": "trained"}
    assert changed["groups"]["came"] == {}
    assert (changed["counts"]["groups_trained"], changed["verdicts_left_out"]) == (2, 0)
    assert [d["about"] for d in changed["decisions"]] == ["inbox-aa", "train-0-000003", "step 1", "step 1"]
    moved = difference(now | {"decisions": []}, was)
    assert moved["groups"]["went"] == {"inbox-aa": "trained or rejected"}


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
