"""Test runs that stop, by an order or by a death, and continue to the weights that they would have had."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import InvalidValue, RunIsOn, SlimeEventsError
from schemas.placements import PlacementPlanned
from schemas.runs import FinishReason, RunFinished, RunResumed
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from slime_events.app.cli.commands import resume as resume_command
from slime_events.app.launch.run_announcement import announce_resume
from slime_events.app.launch.run_lock import holding, is_held
from slime_events.app.launch.run_record import RunRecord, read_run_record
from slime_events.app.launch.supervisor import LAUNCHER
from slime_events.core.config.derivations import on_device
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.model.verify import verify
from storage.archive.reader import ArchiveReader
from storage.nats.accounts import Access
from storage.nats.server import NatsServer
from storage.open_log import open_run_log
from tests.cli.invoke import command
from tests.run.cheap import CountingRanks, Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny

STEPS = 4
resume = command("resume")


def settings_of(folder: Path, name: str = "stopped", /, **components: Any) -> Any:
    return tiny(folder, name, **({"rollout": {"num_rollout": STEPS}} | components))


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last weights of the run that nothing stops."""
    with cheap_parts(Parts()):
        return str(asyncio.run(run_with(settings_of(tmp_path_factory.mktemp("through"))))["weights_digest"])


class Cut(Exception):
    """Ends a launch without a word in the log."""


def stop(folder: Path, *, at_once: bool) -> None:
    """A run that ends in the middle of its third step: in order, or without a word in the log."""

    async def strike(view: Watching) -> None:
        await view.until(lambda p: p.state.version == 2 and p.in_flight > 0)
        if at_once:
            raise Cut
        os.kill(os.getpid(), signal.SIGTERM)

    with cheap_parts(Parts()), contextlib.suppress(Cut):
        asyncio.run(run_with(settings_of(folder), strike))


def words(folder: Path, *flags: str) -> list[str]:
    return ["stopped", "--runs-dir", str(folder / "runs"), "--plain", *flags]


def check_whole(folder: Path, digest: str, steps: int = STEPS) -> list[Any]:
    """Check what holds of a run that was resumed and came to its end."""
    events = events_of(folder / "runs" / "stopped")
    committed = of(events, StepCommitted)
    assert [event.step for event in committed] == list(range(steps))
    assert committed[STEPS - 1].weights_digest == digest

    async def fold() -> None:
        async with open_run_log(folder / "runs" / "stopped") as log:
            await verify(log)

    asyncio.run(fold())
    end = max(recorded.position for recorded in events if isinstance(recorded.envelope.event, RunFinished))
    assert ArchiveReader(str(folder / "runs" / "stopped" / "archive"), "stopped").last >= end
    return events


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stopped_run_goes_on_to_the_same_weights(
    tmp_path: Path, digest: str, at_once: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stop(tmp_path, at_once=at_once)
    with cheap_parts(Parts()):
        assert resume(words(tmp_path)) == 0
    events = check_whole(tmp_path, digest)
    reasons = [FinishReason.ALL_STEPS] if at_once else [FinishReason.INTERRUPTED, FinishReason.ALL_STEPS]
    assert [event.reason for event in of(events, RunFinished)] == reasons
    assert [(event.incarnation, event.settings) for event in of(events, RunResumed)] == [(1, {"run": {"plain": True}})]
    output = capsys.readouterr().err
    assert "after 2 of 4 steps" in output
    assert "step 1/4" not in output, "no message comes twice"
    assert "step 3/4" in output


def test_a_failed_run_goes_on_once_the_cause_is_gone(tmp_path: Path, digest: str) -> None:
    with cheap_parts(Parts(ranks=CountingRanks(fail_at=2))), pytest.raises(SlimeEventsError, match="lost its device"):
        asyncio.run(run_with(settings_of(tmp_path)))
    with cheap_parts(Parts()):
        assert resume(words(tmp_path)) == 0
    check_whole(tmp_path, digest)


def test_a_finished_run_is_left_alone_unless_more_steps_are_asked_for(
    tmp_path: Path, digest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with cheap_parts(Parts()):
        asyncio.run(run_with(settings_of(tmp_path)))
        before = events_of(tmp_path / "runs" / "stopped")
        left = asyncio.run(NatsServer.start(tmp_path / "runs" / "stopped" / "nats"))
        assert resume(words(tmp_path)) == 0
        assert not left.alive, "a killed launcher's server is stopped all the same"
        assert "has finished all its 4 steps: nothing to do" in capsys.readouterr().err
        assert events_of(tmp_path / "runs" / "stopped") == before
        assert resume(words(tmp_path, "--num-rollout", "6")) == 0
    events = check_whole(tmp_path, digest, steps=6)
    assert of(events, RunResumed)[0].settings == {"rollout": {"num_rollout": 6}, "run": {"plain": True}}
    assert [event.incarnation for event in of(events, PlacementPlanned)] == [0, 1]
    with cheap_parts(Parts()):
        assert resume(words(tmp_path)) == 0
    assert "has finished all its 6 steps" in capsys.readouterr().err, "what was changed stays so"


def test_a_run_that_what_was_left_of_it_ends_meanwhile_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def before_its_end(folder: RunFolder) -> RunRecord:
        monkeypatch.undo()
        standing = await look(folder)
        async with open_run_log(folder.path) as log:
            (first,) = [recorded async for recorded in log.read(1, of_type(log.run, "run.started"))]
        return dataclasses.replace(standing, last=first, steps=2)

    with cheap_parts(Parts()):
        asyncio.run(run_with(settings_of(tmp_path)))
        look = resume_command._read_record
        monkeypatch.setattr(resume_command, "_read_record", before_its_end)
        assert resume(words(tmp_path)) == 0
    output = capsys.readouterr().err
    assert "has just ended without its launcher" in output
    assert "has finished all its 4 steps: nothing to do" in output


def test_what_is_trained_cannot_be_changed(tmp_path: Path) -> None:
    stop(tmp_path, at_once=False)
    for flags, reason in (
        (["--lr", "1"], "--lr: a resumed run cannot change"),
        (["--num-rollout", "1"], "2 steps are committed already"),
    ):
        with pytest.raises(InvalidValue, match=reason):
            resume(words(tmp_path, *flags))


def test_a_run_that_is_on_is_refused(tmp_path: Path) -> None:
    async def again(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1)
        folder = RunFolder(tmp_path / "runs", "stopped")
        assert is_held(folder)
        with pytest.raises(RunIsOn, match="is running: there is nothing to resume"):
            resume(words(tmp_path))
        with pytest.raises(RunIsOn, match=f"is running, launched by process {os.getpid()}"), holding(folder):
            pass

    with cheap_parts(Parts()):
        asyncio.run(run_with(settings_of(tmp_path), again))
    assert not is_held(RunFolder(tmp_path / "runs", "stopped"))


def test_of_two_launchers_that_see_the_same_log_one_resumes_it(tmp_path: Path) -> None:
    """Start both as on two machines with one NATS, where no file lock reaches."""
    stop(tmp_path, at_once=True)
    folder = RunFolder(tmp_path / "runs", "stopped")

    async def race() -> list[Any]:
        async with open_run_log(folder.path, access=Access.ROLES) as log:
            standing = await read_run_record(log)
            workers = [Participant(log, LAUNCHER) for _ in range(2)]
            words = (announce_resume(worker, standing, standing.settings, folder) for worker in workers)
            return await asyncio.gather(*words, return_exceptions=True)

    outcomes = asyncio.run(race())
    lives = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    assert [life.number for life in lives] == [1]
    (refused,) = (outcome for outcome in outcomes if isinstance(outcome, BaseException))
    assert isinstance(refused, RunIsOn)
    assert len(of(events_of(folder.path), RunResumed)) == 1


def test_settings_are_those_of_the_start_with_what_was_changed_since(tmp_path: Path) -> None:
    stop(tmp_path, at_once=True)

    async def look() -> RunRecord:
        async with open_run_log(tmp_path / "runs" / "stopped") as log:
            return await read_run_record(log)

    standing = asyncio.run(look())
    assert standing.settings == on_device(settings_of(tmp_path), "auto")
    assert (standing.steps, standing.incarnation, standing.has_finished) == (2, 1, False)
