"""A learner as the command makes it: settings, its own NATS server, log and archive. Its ranks only count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from actors.trainer.ranks import Ranks
from schemas.batches import BatchSealed
from schemas.errors import DeadlineExceeded, InvalidValue, StoreUnavailable
from schemas.runs import RunFailed, RunFinished, RunResumed, RunStarted
from schemas.steps import StepCommitted
from slime_events.analysis.audit.audit import Audit, audit
from slime_events.app.cli.main import main
from slime_events.app.cli.render.audit_text import report_text
from slime_events.app.demo.settings import prepare_demo
from slime_events.app.launch.learn import Learn, LearnerRequest, new_learner, plan_learner
from slime_events.core.config.derivations import derive
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.run.run_reader import OpenedRun, open_run
from slime_events.loop.conductor.plan import make_plan
from slime_events.plugins.sample import Sample
from storage.folders.cache import FOLDER
from storage.log import EventLog, Recorded
from storage.object_store import ObjectFolder
from tests import made
from tests.learner.test_poisoned import archived
from tests.scripted_engine import Script
from tests.simulation.parts import ScriptedRanks
from tests.simulation.simulation import Simulation

STEPS = 4
FILTER = f"{__name__}:not_of_step_1"


def not_of_step_1(args: object, samples: list[Sample]) -> bool:
    """A filter that drops the groups with the third and the fourth prompt."""
    return samples[0].group_index not in (2, 3)


def small(folder: Path) -> TrainSettings:
    """The demo's, with few samples."""
    demo = prepare_demo(folder / "data")
    rollout = structs.replace(demo.rollout, num_rollout=STEPS, rollout_batch_size=2, n_samples_per_prompt=3)
    trainer = structs.replace(demo.trainer, global_batch_size=None, num_steps_per_rollout=None)
    evaluation = structs.replace(demo.evaluation, eval_interval=None, eval_prompt_data=[])
    run = structs.replace(demo.run, run="sim")
    return derive(structs.replace(demo, run=run, rollout=rollout, trainer=trainer, evaluation=evaluation))[0]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The archive of a finished run of four steps of two groups of three samples."""
    folder = tmp_path_factory.mktemp("parent")
    settings = small(folder)

    async def run() -> str:
        plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
        started = made.started(settings)
        async with Simulation(folder, plan, started=started) as sim:
            sim.start_engine(Script(chunk=8))
            await sim.finish()
        return await archived(sim.log, folder / "archive")

    return asyncio.run(run())


class Counting:
    """Makes ranks that share their checkpoints."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.disk: dict[str, bytes] = {}
        self.seconds = seconds
        self.settings: list[TrainSettings] = []

    @asynccontextmanager
    async def __call__(self, settings: TrainSettings) -> AsyncIterator[Ranks]:
        self.settings.append(settings)
        yield OnDisk(self.seconds, self.disk)


class OnDisk(ScriptedRanks):
    """A checkpoint has a folder too, which the launcher looks for."""

    async def save_checkpoint(self, folder: str) -> None:
        await super().save_checkpoint(folder)
        Path(folder).mkdir(parents=True)


@asynccontextmanager
async def learner(where: str, request: LearnerRequest, ranks: Counting, *, new: bool = True) -> AsyncIterator[Learn]:
    async with open_run(where) as parent:
        assert request.runs_dir is not None
        folder, beginning = RunFolder(request.runs_dir, request.name), None
        if new:
            prospect = await plan_learner(parent, request)
            beginning = await new_learner(parent, prospect, RunFolder.create(request.runs_dir, request.name))
        yield Learn(parent, folder, beginning, see=lambda event: None, note=lambda text: None, make_ranks=ranks)


async def records(folder: Path) -> list[Recorded]:
    async with open_run(str(folder)) as opened:
        return [recorded async for recorded in opened.log.read()]


def of(recorded_events: list[Recorded], kind: type[Any]) -> list[Any]:
    return [recorded.envelope.event for recorded in recorded_events if isinstance(recorded.envelope.event, kind)]


def test_retrain_without_a_sample_begins_where_it_was_trained_on(
    parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks, drop = Counting(), "SELECT sample FROM samples WHERE step = 2 LIMIT 1"
    monkeypatch.setattr("slime_events.app.launch.learn.local_ranks", ranks)
    where = ["--runs-dir", str(tmp_path)]
    assert main(["retrain", parent, "--branch", "second", "--drop", drop, *where]) == 0
    out = capsys.readouterr().out.splitlines()
    for line, shown in zip(out, ("1 of 4 batches", "step 2", "version 2 of sim"), strict=False):
        assert shown in line
    assert ["5 samples of 2 groups" in out[3], "6 samples of 2 groups" in out[4]] == [True, True]
    assert ranks.settings[-1].trainer.global_batch_size is None, "a step takes what rollouts there are"
    recorded_events = asyncio.run(records(tmp_path / "second"))
    (started,) = of(recorded_events, RunStarted)
    assert (started.branched.run, started.branched.version, started.branched.follows) == ("sim", 2, True)
    assert [len(batch.samples) for batch in of(recorded_events, BatchSealed)] == [5, 6]
    assert of(recorded_events, RunFinished)[0].steps == STEPS
    assert main(["audit", f"{tmp_path}/second/archive/second"]) == 0, "its archive is the whole of it"
    assert "2 batches, 11 samples, 1 left out of their groups" in capsys.readouterr().out
    assert main(["resume", "second", *where]) == 0
    assert "run second has finished all its steps: nothing to do" in capsys.readouterr().err


async def test_an_interrupted_learner_goes_on_with_what_it_began_with(parent: str, tmp_path: Path) -> None:
    request = LearnerRequest(
        name="second", version=0, drop="SELECT sample FROM samples WHERE step = 0 LIMIT 1", runs_dir=str(tmp_path)
    )
    ranks = Counting(0.05)
    async with learner(parent, request, ranks) as learn:
        learn.see = lambda recorded: isinstance(recorded.envelope.event, StepCommitted) and life.cancel()
        life = asyncio.create_task(learn.run())
        with pytest.raises(asyncio.CancelledError):
            await life
    assert not of(await records(tmp_path / "second"), RunFinished)
    async with learner(parent, request, ranks, new=False) as learn:
        assert await learn.run() == STEPS
    recorded_events = await records(tmp_path / "second")
    assert [step.step for step in of(recorded_events, StepCommitted)] == [0, 1, 2, 3]
    assert len(of(recorded_events, BatchSealed)[0].samples) == 5
    assert len(of(recorded_events, RunResumed)) == 1
    async with learner(parent, request, ranks, new=False) as learn:
        assert await learn.run() == STEPS
    assert await records(tmp_path / "second") == recorded_events, "no message about a run that has finished"
    report = await audit(_each(recorded_events), Audit("second", files=False))
    assert report.clean, report_text(report, 0)


async def test_a_learner_from_a_model_at_a_url_goes_on(
    parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It records the URL, and its ranks get this machine's copy, also after it was interrupted."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    objects, model = ObjectFolder("memory://learner/model"), Path(small(tmp_path).trainer.hf_checkpoint)
    for path in filter(Path.is_file, model.rglob("*")):
        objects.replace(str(path.relative_to(model)), path.read_bytes())
    request = LearnerRequest(name="second", version=0, runs_dir=str(tmp_path), flags=("--hf-checkpoint", objects.url))
    ranks = Counting(0.05)
    async with learner(parent, request, ranks) as learn:
        learn.see = lambda recorded: isinstance(recorded.envelope.event, StepCommitted) and life.cancel()
        life = asyncio.create_task(learn.run())
        with pytest.raises(asyncio.CancelledError):
            await life
    async with learner(parent, request, ranks, new=False) as learn:
        assert await learn.run() == STEPS
    (started,) = of(await records(tmp_path / "second"), RunStarted)
    assert started.settings["trainer"]["hf_checkpoint"] == objects.url
    copies = {Path(settings.trainer.hf_checkpoint) for settings in ranks.settings}
    assert all((copy / "config.json").is_file() for copy in copies)


def archivist_fails(patch: pytest.MonkeyPatch, at: type[Any]) -> None:
    """Once such an event is in the learner's log; before that it does nothing."""

    async def fail(log: EventLog, *_: Any, **__: Any) -> None:
        async for recorded in log.read(follow=True):
            if isinstance(recorded.envelope.event, at):
                raise StoreUnavailable("no archive today")

    patch.setattr("slime_events.app.launch.learn.archive_run", fail)


async def test_what_ends_the_archivist_ends_the_learner(
    parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archivist_fails(monkeypatch, at=BatchSealed)
    endless = Counting(3600.0)
    async with learner(parent, LearnerRequest(name="second", version=0, runs_dir=str(tmp_path)), endless) as learn:
        with pytest.raises(StoreUnavailable, match="no archive today"):
            await asyncio.wait_for(learn.run(), 60)
    recorded_events = await records(tmp_path / "second")
    assert [failed.reason for failed in of(recorded_events, RunFailed)] == ["no archive today"]
    assert not of(recorded_events, RunFinished)


@pytest.mark.parametrize(("at", "error"), [(RunFinished, StoreUnavailable), (RunFailed, DeadlineExceeded)])
async def test_nothing_is_said_after_a_learners_end(
    parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: type[Any], error: type[Exception]
) -> None:
    """Though its archivist fails then, or does not end."""
    archivist_fails(monkeypatch, at=at)
    if error is DeadlineExceeded:
        monkeypatch.setattr("slime_events.app.launch.learn.ARCHIVE_DEADLINE_S", 0.01)
        monkeypatch.setattr("slime_events.app.launch.learn.FAIL_DEADLINE_S", 0.01)
    async with learner(parent, LearnerRequest(name="second", version=3, runs_dir=str(tmp_path)), Counting()) as learn:
        with pytest.raises(error, match="archive"):
            await learn.run()
    assert isinstance((await records(tmp_path / "second"))[-1].envelope.event, RunFinished)


async def _each(recorded_events: list[Recorded]) -> AsyncIterator[Recorded]:
    for recorded in recorded_events:
        yield recorded


async def test_what_cannot_be_asked_for_is_said_before_anything_is_there(parent: str, tmp_path: Path) -> None:
    request = LearnerRequest(name="second", runs_dir=str(tmp_path))
    async with open_run(parent) as opened:
        for change, wrong in (
            (
                {"flags": ("--rollout-temperature", "0.5")},
                "--rollout-temperature: the recorded rollouts depend on these",
            ),
            ({"flags": ("--eval-temperature", "1.0")}, "--eval-temperature: .* branch second --from VERSION"),
            ({"flags": ("--save-debug-train-data", "d/{rollout_id}.pt")}, "--save-debug-train-data: a learner neither"),
            (
                {"drop": "SELECT sample FROM samples WHERE step = 1", "version": 2},
                "Begin with version 1 or an earlier one",
            ),
            ({"drop": "SELECT sample FROM samples WHERE step = 99"}, "--drop selects no sample"),
            ({"changes": str(tmp_path / "none")}, "cannot be read"),
        ):
            with pytest.raises(InvalidValue, match=wrong):
                await plan_learner(opened, replace(request, **change))
    assert not list(tmp_path.iterdir())


async def test_other_settings_begin_at_the_beginning_and_nothing_else_at_no_step(parent: str, tmp_path: Path) -> None:
    request = LearnerRequest(name="second", runs_dir=str(tmp_path))
    async with open_run(parent) as opened:
        assert (await plan_learner(opened, request)).version is None
        assert (await plan_learner(opened, replace(request, flags=("--lr", "1e-3")))).version == 0
        filtered = await plan_learner(opened, replace(request, flags=("--dynamic-sampling-filter-path", FILTER)))
        assert (filtered.version, filtered.preview.differing) == (1, [1])
        graded = tmp_path / "graded.jsonl"
        graded.write_text(await _graded_otherwise(opened, 3))
        prospect = await plan_learner(opened, replace(request, changes=str(graded)))
    assert (prospect.version, prospect.preview.differing, len(prospect.preview.regraded)) == (3, [3], 1)


async def _graded_otherwise(opened: OpenedRun, step: int) -> str:
    async for recorded in opened.log.read():
        event = recorded.envelope.event
        if isinstance(event, BatchSealed) and event.step == step:
            return f'{{"sample": "{event.samples[0]}", "reward": 9.0}}\n'
    raise AssertionError
