"""Runs opened, followed and stopped by the public API. Starting a real one: tests/run/test_the_loop.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import slime_events
from schemas.errors import DeadlineExceeded, InvalidValue, RunNotFound
from slime_events.core.run.run_folder import RunFolder
from tests import made
from tests.docs.pages import DOCS
from tests.docs.recorded_run import STEPS, events, run_settings


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """A recorded run, of which only the archive is there."""
    _, *rest = events()
    events_ = [made.started(run_settings(), code_version="0"), *rest]
    return made.archived(tmp_path / "archive", made.recorded(*events_, run="demo"), closed=False)


def test_an_archive_is_asked(archive: str, tmp_path: Path) -> None:
    with slime_events.open_run(archive, cache=tmp_path / "tables") as run:
        assert (run.name, run.status()) == ("demo", slime_events.RunStatus.UNENDED)
        assert run.settings == run_settings()
        assert run.sql("SELECT count(*) FROM steps").rows() == [(STEPS,)]
        steps = [record.envelope.event.step for record in run.events("step.committed")]
        assert steps == list(range(STEPS))
        assert {record.envelope.type for record in run.events("group")} == {"group.accepted", "group.rejected"}
        later = [record.position for record in run.events(start=10)]
        assert later == list(range(10, later[-1] + 1))
        (first, *_) = run.events(sample="train-0-000000-s0")
        assert first.envelope.type == "rollout.requested"
        with pytest.raises(InvalidValue):
            next(run.events("step.comitted"))
        with pytest.raises(RunNotFound):
            run.agent_request("train-0-000000-s0", 0)


def test_events_may_be_left_early(archive: str) -> None:
    with slime_events.open_run(archive) as run:
        for recorded in run.events():
            assert recorded.position == 1
            break
        assert next(run.events(start=2)).position == 2


async def test_it_works_where_an_event_loop_runs(archive: str) -> None:
    with slime_events.open_run(archive) as run:
        assert next(run.events()).envelope.type == "run.started"


def test_the_page_does_what_it_shows(archive: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (DOCS / "python-api.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = [block for block in blocks if 'open_run("demo")' in block]
    assert len(shown) == 2
    for block in shown:
        exec(block.replace('"demo"', repr(archive)), {"slime_events": slime_events})
    assert "demo unended" in capsys.readouterr().out


def test_settings_are_those_of_a_command_line(tmp_path: Path) -> None:
    settings = slime_events.demo_settings(tmp_path, "--run", "mine", "--num-rollout", "2")
    assert (settings.run.run, settings.rollout.num_rollout) == ("mine", 2)
    assert Path(settings.data.prompt_data or "").parent == tmp_path
    with pytest.raises(slime_events.ConfigError):
        slime_events.parse_settings("--num-rollouts", "2")


def test_what_cannot_start_is_an_error_at_once(tmp_path: Path) -> None:
    settings = slime_events.demo_settings(
        tmp_path / "data", "--runs-dir", str(tmp_path), "--custom-rm-path", str(tmp_path / "absent.py")
    )
    with pytest.raises(slime_events.ConfigError, match="custom-rm-path"):
        slime_events.start_run(settings)
    assert not (tmp_path / "demo").exists()


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "runs", "demo")
    folder.settings.write_text("")
    settings = slime_events.demo_settings(tmp_path / "data", "--runs-dir", str(tmp_path / "runs"))
    with pytest.raises(slime_events.ConfigError, match="demo"):
        slime_events.start_run(settings)


def test_runs_that_are_not_there(tmp_path: Path) -> None:
    questions: list[Any] = [
        lambda: slime_events.open_run("none", runs_dir=tmp_path),
        lambda: slime_events.resume_run("none", runs_dir=tmp_path),
        lambda: slime_events.branch_run("none", 1, "mine", runs_dir=tmp_path),
        lambda: slime_events.stop_run("none", runs_dir=tmp_path),
    ]
    for ask in questions:
        with pytest.raises(slime_events.RunNotFound):
            ask()


def test_a_launcher_that_cannot_go_on_says_why(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "mine")
    folder.settings.write_text("[run]\nrun = 'mine'\n")
    run = slime_events.resume_run("mine", "--no-such-flag", runs_dir=tmp_path)
    with pytest.raises(DeadlineExceeded):
        run.wait(timeout_s=0)
    with pytest.raises(slime_events.SlimeEventsError):
        run.wait(timeout_s=60)
    assert not run.is_running
    assert "error: " in run.output()
    with pytest.raises(slime_events.RunNotFound):
        slime_events.stop_run("mine", runs_dir=tmp_path)
