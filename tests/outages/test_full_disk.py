"""Fill a disk in the middle of a run: the run ends with the reason, nothing acked is lost, and it continues
once there is room.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.errors import NoSpace
from schemas.runs import RunFailed
from slime_events.core.config.settings import TrainSettings
from slime_events.model.verify import verify
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from storage.open_log import open_run_log
from tests.cli.invoke import command
from tests.outages.disk import fill, small_disk
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny
from tests.storage.log.appends import chunk, everything, reward

STEPS = 4
DISK_MB = 120
MANY = 10_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_MB) as folder:
        yield folder


def settings_of(folder: Path, data: Path, **run: str) -> TrainSettings:
    return tiny(data, "full", rollout={"num_rollout": STEPS}, run={"runs_dir": str(folder / "runs")} | run)


def undisturbed(folder: Path) -> str:
    with cheap_parts(Parts()):
        return str(asyncio.run(run_with(settings_of(folder, folder)))["weights_digest"])


@pytest.mark.parametrize("left_mb", [10, 0])
def test_a_run_ends_with_the_reason_and_goes_on_with_room(tmp_path: Path, disk: Path, left_mb: int) -> None:
    """left_mb: 10, the log still takes the reason; 0, the NATS server is silent until it is started again."""
    digest, folder, fillers = undisturbed(tmp_path), disk / "runs" / "full", list[Path]()

    async def strike(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1)
        fillers.append(await asyncio.to_thread(fill, disk, left_mb << 20))

    with cheap_parts(Parts()), pytest.raises(NoSpace, match="free some space"):
        asyncio.run(run_with(settings_of(disk, tmp_path), strike))
    fillers[0].unlink()
    before = events_of(folder)
    if left_mb:
        assert [event.role for event in of(before, RunFailed)] == ["launcher"]
        assert "free some space" in json.loads((folder / "summary.json").read_text())["failure"]
    with cheap_parts(Parts()):
        assert command("resume")([str(folder)]) == 0
    assert events_of(folder)[: len(before)] == before, "what was acked is there"
    assert json.loads((folder / "summary.json").read_text())["weights_digest"] == digest

    async def fold() -> None:
        async with open_run_log(folder, "full") as log:
            await verify(log)

    asyncio.run(fold())


async def _fill(log: JetStreamLog) -> None:
    for i in range(MANY):
        await log.append([chunk(log, f"s{i}", 0, tokens=10_000)])


async def test_an_append_waits_for_room_on_a_server_that_is_full(tmp_path: Path) -> None:
    """Wait like at the limit of a foreign server; here a log that shares it goes away."""
    notices: list[str] = []
    async with await NatsServer.start(tmp_path / "nats", max_store_bytes=4 << 20) as server:
        other, log = [await JetStreamLog.open(server.url, run, retry_s=0.2) for run in ("other", "r")]
        await log.append([reward(log, "first")])
        with pytest.raises(NoSpace):
            await _fill(other)
        patient = await JetStreamLog.open(server.url, "r", retry_s=60.0, on_wait=notices.append)
        appending = asyncio.create_task(patient.append([chunk(patient, "s", 0, tokens=10_000)]))
        await asyncio.sleep(1.0)
        assert not appending.done()
        await other.remove()
        assert await appending == [2]
        assert [notice for notice in notices if "no room" in notice]
        assert len(await everything(log)) == 2
        for opened in (log, patient):
            await opened.close()
