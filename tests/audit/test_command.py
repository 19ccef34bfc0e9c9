"""The command on a run's folder: what it prints and how it ends."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from storage.archive.writer import ArchiveWriter
from storage.jetstream.log import JetStreamLog
from storage.log import Append, append_all
from storage.nats.server import NatsServer
from tests.audit.clean import Run
from tests.audit.doctored import Doctored


def make_folder(path: Path, log: Doctored) -> str:
    """A run's folder with this log; its path."""

    async def fill() -> None:
        async with await NatsServer.start(path / "nats") as server:
            stream = await JetStreamLog.open(server.url, log.run)
            await append_all(stream, [Append(recorded.envelope) for recorded in log.recorded()])
            await stream.close()

    path.mkdir()
    (path / "settings.toml").write_text(to_toml(TrainSettings()).replace('run = "train"', f'run = "{log.run}"'))
    asyncio.run(fill())
    return str(path)


def test_a_clean_run_ends_with_0(synchronous: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_folder(tmp_path / "run", synchronous.doctored())
    assert main(["audit", folder]) == 0
    *checks, empty, last = capsys.readouterr().out.splitlines()
    assert empty == ""
    assert all(line.startswith("ok     ") for line in checks)
    assert last.startswith(f"run sim is clean: {len(checks)} checks, {len(synchronous.records)} events in")
    assert main(["audit", folder, "--no-files", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["clean"], facts["events"]) == (True, len(synchronous.records))
    assert {check["name"] for check in facts["checks"]} == {line[7:].split()[0] for line in checks} - {"files"}


def test_a_doctored_run_ends_with_1(synchronous: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = synchronous.doctored()
    trained = log.find("batch.sealed").event["samples"]
    log.find("reward.assigned", where=lambda event: event["sample"] in trained).event["value"] = -1.0
    folder = make_folder(tmp_path / "run", log)
    assert main(["audit", folder]) == 1
    out = capsys.readouterr().out
    assert "WRONG  verdicts" in out
    assert "were assigned, so the verdict does not follow from the log\n" in out
    assert "run sim has " in out.splitlines()[-1]
    assert main(["audit", folder, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    sentences = [finding["sentence"] for check in facts["checks"] for finding in check["findings"]]
    assert all(sentence in out for sentence in sentences)
    assert not facts["clean"]


def test_damaged_weights_end_with_1_where_files_are_looked_at(
    synchronous: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = synchronous.doctored()
    log.delete(log.find("run.finished"))  # the run is on: no end says what its events fold to
    for record in log.records:
        if record.type == "weights.published":
            record.event["url"] = record.event["url"].replace(str(synchronous.folder), "/gone")
    folder = make_folder(tmp_path / "run", log)
    shutil.copytree(synchronous.folder / "weights", tmp_path / "run" / "weights")
    assert main(["audit", folder]) == 0
    (damaged,) = (tmp_path / "run" / "weights").glob("v000003-*/model.safetensors")
    damaged.write_bytes(damaged.read_bytes()[:-1])
    capsys.readouterr()
    assert main(["audit", folder, "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in facts["checks"] if check["findings"]] == ["files"]
    assert main(["audit", folder, "--no-files"]) == 0


def test_an_archive_needs_no_run_folder(synchronous: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = ArchiveWriter(str(tmp_path), "sim")
    for number, recorded in enumerate(synchronous.records):
        writer.add(recorded)
        if number == 100:
            writer.seal()
    writer.close()
    assert main(["audit", "sim", "--archive", str(tmp_path)]) == 0
    assert f"run sim is clean: 15 checks, {len(synchronous.records)} events in" in capsys.readouterr().out
    first = min((tmp_path / "sim" / "segments").iterdir())
    first.write_bytes(first.read_bytes()[:-1])
    assert main(["audit", "sim", "--archive", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "reading stopped: archive segment 1 (positions 1 to 101)" in out
    assert "and was not read to its end" in out.splitlines()[-1]
