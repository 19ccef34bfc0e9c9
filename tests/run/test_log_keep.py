"""A run whose events leave its log for the archive while it is on: nobody who asks it anything notices."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import ConfigError
from schemas.runs import RunResumed
from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.training.train_batch import StepResult
from storage.open_log import open_run_log
from tests.cli.invoke import command
from tests.run.cheap import CountingRanks, Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny

resume, branch, archive, restore = command("resume"), command("branch"), command("archive"), command("restore")
STEPS = 6
CHECKS = ("audit", "replay", "rescore")
QUESTIONS = (
    ["tail", "RUN", "--json", "--no-follow"],
    ["query", "RUN", "select count(*), sum(reward) from samples"],
    ["lineage", "RUN", "--version", "2", "--format", "json"],
    ["show", "RUN", "--step", "0", "--json"],
    ["show", "RUN", "--version", "1", "--json"],
    ["show", "RUN", "--at", "step:1", "--json"],
    ["show", "RUN", "--verify"],
)


def settings_of(folder: Path, **run: Any) -> TrainSettings:
    """Without a checkpoint, so that a trainer that takes over needs the first event again."""
    return tiny(folder, "kept", rollout={"num_rollout": STEPS}, run=run)


class Cut(Exception):
    """Ends a launch without a word in the log."""


class Hanging(CountingRanks):
    """In the fifth step, without end."""

    async def train(self, batch: Any) -> StepResult:
        if self.step == 4:
            await asyncio.Event().wait()
        return await super().train(batch)


async def first_of(folder: Path) -> int:
    async with open_run_log(folder) as log:
        return (await log.extent()).first


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots of a little run."""
    monkeypatch.setitem(StateKeeper.__init__.__kwdefaults__, "every", 50)


def started(folder: Path, url: str) -> Path:
    """A run that dies in its fifth step, after its first steps have left its log."""
    run = folder / "runs" / "kept"

    async def strike(view: Watching) -> None:
        await view.until(lambda p: p.state.version == 4)
        while await first_of(run) < 100:  # noqa: ASYNC110  another process's log
            await asyncio.sleep(0.1)
        raise Cut

    with cheap_parts(Parts(ranks=Hanging())), contextlib.suppress(Cut):
        asyncio.run(run_with(settings_of(folder, archive_url=url, archive_seconds=0.2, log_keep_steps=1), strike))
    return run


def test_a_run_goes_on_over_what_has_left_its_log(
    tmp_path: Path, often: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with cheap_parts(Parts()):
        undisturbed = asyncio.run(run_with(settings_of(tmp_path / "through")))["weights_digest"]
    url, runs = str(tmp_path / "archive"), str(tmp_path / "runs")
    run = started(tmp_path, url)
    shutil.rmtree(run / "snapshots")
    with cheap_parts(Parts()):
        assert resume(["kept", "--runs-dir", runs, "--plain"]) == 0
    events = events_of(run)
    assert [recorded.position for recorded in events] == list(range(1, len(events) + 1))
    assert len(of(events, RunResumed)) == 1
    assert json.loads((run / "summary.json").read_text())["weights_digest"] == undisturbed
    assert archive(["kept", "--runs-dir", runs]) == 0  # what an engine says after the run's end
    capsys.readouterr()
    assert main(["show", str(run), "--json"]) == 0
    disk = json.loads(capsys.readouterr().out)["disk"]
    assert 100 < disk["log"]["first"] < disk["log"]["last"] == len(events) == disk["archive"]["last"]
    assert [main([check, str(run)]) for check in CHECKS] == [0] * len(CHECKS), capsys.readouterr().out
    capsys.readouterr()
    for question in QUESTIONS:
        outputs = []
        for where in (str(run), f"{url}/kept"):
            assert main([where if word == "RUN" else word for word in question]) == 0, question
            outputs.append(capsys.readouterr().out.replace(str(run), "RUN").replace(f"{url}/kept", "RUN"))
        assert outputs[0] == outputs[1], question
    assert archive(["kept", str(tmp_path / "copy"), "--runs-dir", runs]) == 0
    assert archive(["kept", str(tmp_path / "copy"), "--runs-dir", runs, "--verify"]) == 0
    with cheap_parts(Parts()):
        assert restore(["kept", url, "--runs-dir", str(tmp_path / "restored")]) == 0
        more = ["--num-rollout", str(STEPS + 2), "--log-keep-steps", "2", "--plain"]
        assert resume(["kept", "--runs-dir", str(tmp_path / "restored"), *more]) == 0
    assert asyncio.run(first_of(tmp_path / "restored" / "kept")) > 1


def test_a_log_that_keeps_everything_cannot_let_go_later(tmp_path: Path) -> None:
    with cheap_parts(Parts()):
        asyncio.run(run_with(settings_of(tmp_path, archive_url=str(tmp_path / "archive"))))
        more = ["--num-rollout", str(STEPS + 1), "--log-keep-steps", "1", "--plain"]
        with pytest.raises(ConfigError, match="keeps all events"):
            resume(["kept", "--runs-dir", str(tmp_path / "runs"), *more])
