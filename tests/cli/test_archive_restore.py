"""`slime-events archive` and `slime-events restore`, from the command line to the folder."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from schemas.errors import ArchiveDamaged, InvalidValue, RunIsOn, StorageError
from schemas.event import Event
from schemas.prompts import Source
from slime_events.app.cli.commands.archive import check_blobs as blobs_of
from slime_events.app.cli.commands.restore import MARK
from slime_events.app.launch.run_lock import holding
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.toml import to_toml
from slime_events.core.run.run_folder import RunFolder
from storage.archive.reader import ArchiveReader
from storage.blobs import BlobStore
from storage.jetstream.log import JetStreamLog
from storage.log import Recorded
from storage.nats.server import NatsServer
from storage.open_log import open_run_log
from storage.payloads import offload
from tests import made
from tests.cli.invoke import command

archive, restore = command("archive"), command("restore")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A stopped run of 30 prompts, every third of them with a blob."""
    folder = RunFolder.create(tmp_path / "runs", "r")
    settings = made.settings(run={"run": "r", "runs_dir": str(tmp_path / "runs")})
    folder.settings.write_text(to_toml(settings))
    asyncio.run(_fill(folder, settings))
    return folder


async def _fill(folder: RunFolder, settings: TrainSettings, *more: Event) -> None:
    blobs = BlobStore(str(folder.blobs))
    events = [made.started(settings, code_version="0")]
    events += [
        offload(
            made.submitted(f"g{i}", text="?", tokens=range(i, i + 20 * (i % 3 + 1)), source=Source("f", row=i)),
            blobs,
            limit=200,
        )
        for i in range(30)
    ]
    async with await NatsServer.start(folder.nats) as server:
        log = await JetStreamLog.open(server.url, "r")
        await made.say(log, *events, *more)
        await log.close()


def events_of(folder: RunFolder) -> list[Recorded]:
    async def read() -> list[Recorded]:
        async with open_run_log(folder.path, "r") as log:
            return [recorded async for recorded in log.read()]

    return asyncio.run(read())


def words(run: RunFolder, *more: str) -> list[str]:
    return ["r", *more, "--runs-dir", str(run.path.parent)]


def test_there_and_back(run: RunFolder, tmp_path: Path) -> None:
    url, other = str(tmp_path / "backup"), RunFolder(tmp_path / "other", "r")
    assert archive(words(run, url)) == 0
    assert archive([*words(run, url), "--verify"]) == 0
    reader = ArchiveReader(url, "r")
    summary = reader.verify()
    assert (summary.events, summary.segments, summary.closed) == (31, 1, False)
    assert blobs_of(reader) == (10, 0)
    assert restore(["r", url, "--runs-dir", str(other.path.parent)]) == 0
    assert len([path for path in other.blobs.rglob("*") if path.is_file()]) == 10
    assert events_of(other) == events_of(run)
    assert other.settings.read_text() == run.settings.read_text()
    with pytest.raises(RunIsOn):
        restore(["r", url, "--runs-dir", str(other.path.parent)])


def test_into_a_server_of_ones_own(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive(words(run))
    own, other = str(run.archive), RunFolder(tmp_path / "other", "r")
    assert not (run.archive / "r" / "blobs").exists(), "an archive in the run's folder has no copies"

    async def there() -> None:
        async with await NatsServer.start(tmp_path / "server") as server:
            for blob in run.blobs.rglob("*"):
                if blob.is_file():
                    BlobStore(str(other.blobs)).put(blob.read_bytes())
            line = ["r", own, "--runs-dir", str(other.path.parent), "--nats-url", server.url]
            assert await asyncio.to_thread(restore, line) == 0
            assert await asyncio.to_thread(events_of, other) == records
            assert f"resume r --runs-dir {other.path.parent} --nats-url {server.url}" in capsys.readouterr().out

    records = events_of(run)
    asyncio.run(there())


def test_an_interrupted_restore_goes_on(run: RunFolder, tmp_path: Path) -> None:
    archive(words(run))
    records = events_of(run)
    (run.path / MARK).touch()
    run.settings.unlink()
    assert restore(words(run, str(run.archive))) == 0
    assert events_of(run) == records
    assert run.settings.exists()
    assert not (run.path / MARK).exists()


def test_damage_is_found_and_repaired(run: RunFolder) -> None:
    archive(words(run))
    (segment,) = run.archive.rglob("*.zst")
    good = segment.read_bytes()
    segment.write_bytes(good[:50] + bytes([good[50] ^ 1]) + good[51:])
    with pytest.raises(ArchiveDamaged, match="--repair"):
        archive([*words(run), "--verify"])
    assert archive([*words(run), "--repair", "--verify"]) == 0
    assert segment.read_bytes() == good


def test_what_is_refused(run: RunFolder, tmp_path: Path) -> None:
    with holding(run), pytest.raises(RunIsOn):
        archive(words(run))
    with pytest.raises(StorageError):
        restore(["r", str(tmp_path / "nothing"), "--runs-dir", str(tmp_path / "other")])


def test_weights_at_a_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Named on the command line, the store is trusted, and the newest version is looked for there."""
    weights, backup, run = str(tmp_path / "weights"), str(tmp_path / "backup"), RunFolder.create(tmp_path / "runs", "r")
    settings = made.settings(run={"run": "r", "runs_dir": str(tmp_path / "runs"), "weights_url": weights})
    run.settings.write_text(to_toml(settings))
    asyncio.run(_fill(run, settings, made.published(0), made.published(1)))
    assert archive(words(run, backup)) == 0

    def restored(name: str, *more: str) -> str:
        assert restore(["r", backup, "--runs-dir", str(tmp_path / name), *more]) == 0
        return capsys.readouterr().out

    unnamed = restored("unnamed")
    assert "--weights-url" in unnamed
    assert "lacks version" not in unnamed
    for name, more in (("named", ["--weights-url", weights]), ("trusted", ["--trust-archive"])):
        output = restored(name, *more)
        assert "these flags" not in output
        assert f"{weights}/r lacks version 1" in output
    assert weights in RunFolder(tmp_path / "named", "r").restored.read_text()
    (tmp_path / "weights" / "r" / "v000001-d1").mkdir(parents=True)
    assert "lacks version" not in restored("complete", "--weights-url", weights)
    with pytest.raises(InvalidValue, match=re.escape(f"at {weights}: give that URL")):
        restored("wrong", "--weights-url", f"{weights}2")
