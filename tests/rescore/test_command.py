"""`slime-events rescore` over an archive with nothing else left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from schemas.event import Event
from slime_events.analysis.rescore.change import make_change
from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.learner.overrides import read_overrides
from tests import made
from tests.rescore.recorded import NONZERO_STD, record, settings


@pytest.fixture
async def archive(tmp_path: Path) -> str:
    """The path of an archived run."""
    run = settings()
    sim = await record(tmp_path, run)
    return archived(tmp_path, run, [recorded.envelope.event for recorded in sim.log.records][1:])


def archived(folder: Path, run: TrainSettings, events: Sequence[Event]) -> str:
    """The events of a run, after its settings, as an archive in the folder."""
    events_ = [made.started(run), *events]
    return made.archived(folder / "archive", made.recorded(*events_, run="sim", at=1, apart=0), closed=False)


def test_text_json_and_changes(archive: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescore", archive]) == 0
    assert "Nothing would differ" in capsys.readouterr().out
    out = tmp_path / "changes.jsonl"
    assert main(["rescore", archive, "--json", "--dynamic-sampling-filter-path", NONZERO_STD, "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["same"] is False
    assert len(read_overrides(out.read_bytes(), "out").verdicts) == report["groups"]["rejected_now"] > 0
    assert report["first_difference"] == min(step["step"] for step in report["steps"] if step["lost"])


def test_a_setting_that_it_cannot_answer_for(archive: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rescore", archive, "--lr", "1e-5"]) == 2
    assert "--lr: recorded rollouts do not show" in capsys.readouterr().err


def test_a_built_in_grader_replaces_the_function_of_the_run() -> None:
    run = made.settings(settings(), reward={"rm_type": "exact", "custom_rm_path": "mine.py:reward"})
    change = make_change(run, ["--rm-type", "exact"])
    assert (change.after.reward.custom_rm_path, change.regrade) == (None, True)
    assert make_change(run, ["--rm-timeout", "5"]).after.reward.custom_rm_path == "mine.py:reward"
