"""Test what loggers write, read back; and the process that writes it beside a run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import InvalidValue, MissingPart
from slime_events.analysis.metrics.fold import AXES, MetricsRow
from slime_events.app.demo.settings import demo_settings
from slime_events.app.launch import metrics_process
from slime_events.app.launch.metrics_process import metrics_written
from slime_events.app.loggers import open_loggers
from slime_events.app.loggers.logger import LoggedRun
from slime_events.core.config.metrics import MetricsSettings
from slime_events.core.config.secrets import kept
from slime_events.core.config.toml import settings_from, to_toml
from slime_events.core.run.run_folder import RunFolder
from storage.jetstream.log import JetStreamLog
from storage.log import Append, append_all
from storage.nats.server import NatsServer
from tests import made
from tests.cli.invoke import command
from tests.metrics.read_back import Points, tensorboard_points, wandb_records, wandb_rows
from tests.metrics.rows import EVERYTHING, rows
from tests.simulation.simulation import Simulation, make_plan

metrics = command("metrics")
SETTINGS = replace(demo_settings(Path("data")), metrics=EVERYTHING)
STARTED = made.started(SETTINGS)


@pytest.fixture
async def sim(tmp_path: Path) -> Simulation:
    """A finished run with evaluations."""
    plan = make_plan(eval_every=2, eval_names=("held",), eval_samples=2)
    (tmp_path / "sim").mkdir()
    async with Simulation(tmp_path / "sim", plan, evaluations={"held": ["one", "two"]}, started=STARTED) as run:
        run.start_engine()
        await run.finish()
    return run


@pytest.fixture
def archive(sim: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Its archive; the working directory is another one."""
    made.archived(tmp_path / "archive", sim.log.records)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    return str(tmp_path / "archive" / "sim")


def points_of(rows_: list[MetricsRow]) -> Points:
    """The points that loggers have to show: (step, value) of each metric."""
    points: Points = defaultdict(list)
    for row in rows_:
        for name in row.values.keys() - set(AXES.values()):
            points[name].append((int(row.values[AXES[name.partition("/")[0]]]), row.values[name]))
    return points


def near(points: Points) -> Any:
    """The points, as exact as a float of 32 bits."""
    return {
        name: [(step, pytest.approx(value, rel=1e-6, abs=1e-6)) for step, value in of] for name, of in points.items()
    }


def test_tensorboard_has_every_point_once_however_often_it_is_written(sim: Simulation, archive: str) -> None:
    pytest.importorskip("tensorboard")
    words = ("--use-tensorboard", "--tb-project-name", "p", "--tb-experiment-name", "e")
    for _ in range(2):
        assert metrics([archive, *words]) == 0
    folder = Path("tensorboard_log/p/e")
    assert len(list(folder.iterdir())) == 1
    expected = points_of(rows(sim.log.records, SETTINGS))
    assert {name: sorted(points) for name, points in tensorboard_points(folder).items()} == near(expected)
    assert {"rollout/raw_reward", "passrate/pass@2", "train/loss", "perf/rollout_time", "eval/held"} <= set(expected)


def test_tensorboards_variable_says_where(archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "boards"))
    (tmp_path / "boards").mkdir()
    (tmp_path / "boards" / "events.out.tfevents.1.another.run").write_text("")
    assert metrics([archive, "--use-tensorboard"]) == 0
    assert len(list((tmp_path / "boards").iterdir())) == 2  # what another run has written stays


def test_wandb_offline_has_every_row_once_however_often_it_is_written(sim: Simulation, archive: str) -> None:
    pytest.importorskip("wandb")
    key = "planted-wandb-key-of-forty-characters-00"
    words = ("--use-wandb", "--wandb-mode", "offline", "--wandb-project", "p", "--wandb-group", "g", "--wandb-key", key)
    command_line = (sys.executable, "-m", "slime_events.app.cli.main", "metrics", archive, *words)
    for _ in range(2):
        subprocess.run(command_line, check=True, stderr=subprocess.DEVNULL)  # W&B starts threads and a process
    (file,) = Path("wandb").glob("offline-run-*/run-*.wandb")
    logged = wandb_rows(file)
    expected = rows(sim.log.records, SETTINGS)
    assert [{name: row[name] for name in row_.values} for row, row_ in zip(logged, expected, strict=True)] == [
        pytest.approx(row_.values) for row_ in expected
    ]
    assert [row["log/position"] for row in logged] == [row_.position for row_ in expected]
    (run,) = [record.run for record in wandb_records(file) if record.HasField("run")]
    assert (run.project, run.run_group[:2], run.display_name[:2]) == ("p", "g_", "g_")
    axes = {
        record.metric.glob_name: record.metric.step_metric
        for record in wandb_records(file)
        if record.metric.step_metric
    }
    assert axes == {f"{prefix}/*": axis for prefix, axis in AXES.items()}
    assert not [path for path in Path().rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


class FakeRun:
    """Play the W&B run that already has the first rows of a run."""

    def __init__(self, summary: dict[str, Any]) -> None:
        self.summary, self.logged, self.url = summary, list[dict[str, Any]](), "https://wandb.example/t/p/runs/1"

    def define_metric(self, *_: object, **__: object) -> None: ...

    def log(self, row: dict[str, Any]) -> None:
        self.logged.append(row)


def test_wandb_online_goes_on_behind_its_newest_row(
    sim: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    rows_ = rows(sim.log.records, SETTINGS)
    run, options = FakeRun({"log/position": rows_[3].position}), dict[str, Any]()
    monkeypatch.setattr(wandb, "init", lambda **kwargs: options.update(kwargs) or run)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    settings = settings_from(kept({"metrics": {"use_wandb": True, "wandb_key": "k" * 40, "wandb_team": "t"}}))
    assert settings.metrics.wandb_key == "${SLIME_EVENTS_WANDB_KEY}"
    (logger,) = open_loggers.open_loggers(settings, LoggedRun("sim", 1, tmp_path))
    for row in rows_:
        logger.write(row)
    assert run.logged == [row.values | {"log/position": row.position} for row in rows_[4:]]
    assert (options["mode"], options["resume"], options["entity"]) == ("online", "allow", "t")
    assert options["settings"].api_key == "k" * 40
    assert "k" * 40 not in json.dumps(options["config"])
    assert LoggedRun("sim", 1, tmp_path).id == options["id"] != LoggedRun("sim", 2, tmp_path).id


def test_rows_are_printed_without_any_package(
    sim: Simulation, archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert metrics([archive, "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        {"position": row.position, "at": row.at, "values": row.values} for row in rows(sim.log.records, SETTINGS)
    ]
    assert metrics([archive]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(points_of(rows(sim.log.records, SETTINGS)))


def test_what_is_no_flag_of_metrics_is_refused(archive: str) -> None:
    with pytest.raises(InvalidValue, match="--rm-timeout"):
        metrics([archive, "--rm-timeout", "3"])


def test_a_package_that_is_missing_is_one_sentence(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_loggers.importlib.util, "find_spec", lambda name: None)
    settings = MetricsSettings(use_wandb=True, use_tensorboard=True)
    assert set(open_loggers.missing(settings)) == {"--use-wandb", "--use-tensorboard"}
    assert not open_loggers.missing(replace(settings, use_tensorboard=False, wandb_mode="disabled"))
    with pytest.raises(MissingPart, match="pip install"):
        metrics([archive, "--use-wandb"])


@pytest.fixture
async def folder(sim: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The run with a log on a NATS server's disk."""
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    run_folder = RunFolder.create(tmp_path, "sim-folder")
    run_folder.settings.write_text(to_toml(SETTINGS).replace(f'run = "{SETTINGS.run.run}"', 'run = "sim"'))
    async with await NatsServer.start(run_folder.nats) as server:
        stream = await JetStreamLog.open(server.url, "sim")
        await append_all(stream, [Append(record.envelope) for record in sim.log.records])
        await stream.close()
    return run_folder


async def test_a_process_beside_the_run_writes_all_of_it(
    sim: Simulation, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(metrics_process, "END_S", 300.0)  # it has the lowest priority, and imports much
    notes: list[str] = []
    async with metrics_written(MetricsSettings(use_tensorboard=True), folder, notes.append):
        pass
    assert notes == []
    expected = points_of(rows(sim.log.records, SETTINGS))
    assert {name: len(of) for name, of in tensorboard_points(folder.path / "tensorboard").items()} == {
        name: len(of) for name, of in expected.items()
    }


async def test_a_logger_that_fails_is_started_again_and_ends_no_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(metrics_process, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(
        metrics_process, "FAILED_END_S", 60.0
    )  # it has the lowest priority, and others load the machine
    (folder.path / "tensorboard").write_text("in the way")
    notes, failed = list[str](), asyncio.Event()

    def note(text: str) -> None:
        notes.append(text)
        failed.set()

    async with metrics_written(MetricsSettings(use_tensorboard=True), folder, note):
        await failed.wait()
        (folder.path / "tensorboard").unlink()
    assert len(notes) == 1
    assert str(folder.logs / "metrics-tensorboard.log") in notes[0]
    assert tensorboard_points(folder.path / "tensorboard")


async def test_a_logger_that_is_killed_is_started_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(metrics_process, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(
        metrics_process, "FAILED_END_S", 60.0
    )  # it has the lowest priority, and others load the machine
    killed = folder.path / "killed"
    script = folder.path / "python"
    left = "mkdir $TMPDIR/tmpwandb-media"
    script.write_text(f'#!/bin/sh\n[ -e {killed} ] && exec {sys.executable} "$@"\n{left}\ntouch {killed}\nkill -9 $$\n')
    monkeypatch.setenv("TMPDIR", str(folder.path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (folder.path / "tmp").mkdir()
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    notes, ended = list[str](), asyncio.Event()

    def note(text: str) -> None:
        notes.append(text)
        ended.set()

    async with metrics_written(MetricsSettings(use_tensorboard=True), folder, note):
        await ended.wait()
    assert len(notes) == 1
    assert "SIGKILL" in notes[0]
    assert list((folder.path / "tmp").iterdir()) == []
    assert tensorboard_points(folder.path / "tensorboard")


async def test_a_logger_that_hangs_is_left_behind(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(metrics_process, "END_S", 0.5)
    os.mkfifo(fifo := folder.path / "fifo")
    monkeypatch.setattr(sys, "executable", str(fifo.with_name("hangs")))
    fifo.with_name("hangs").write_text(f"#!/bin/sh\ncat {fifo}\n")
    fifo.with_name("hangs").chmod(0o755)
    notes: list[str] = []
    async with metrics_written(MetricsSettings(use_tensorboard=True), folder, notes.append):
        pass
    assert len(notes) == 1
    assert "slime-events metrics" in notes[0]


async def test_without_a_logger_there_is_no_process(folder: RunFolder) -> None:
    async with metrics_written(MetricsSettings(use_wandb=True, wandb_mode="disabled"), folder, pytest.fail):
        pass
    assert not list(folder.logs.iterdir())
