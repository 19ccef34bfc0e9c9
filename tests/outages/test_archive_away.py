"""Test an archive whose store is away, or takes nothing: the run continues with a warning, and the archive
catches up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from s3fs import S3FileSystem

from actors.archivist import ArchiveOutcome, Backoff, SealPolicy, archive_run
from schemas.errors import DeadlineExceeded, StoreUnavailable
from schemas.runs import RunFinished
from slime_events.app.launch import supervisor
from storage.archive.reader import ArchiveReader
from storage.archive.writer import ArchiveWriter
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog
from storage.nats.ports import HOST
from storage.nats.server import NatsServer
from tests.cli.invoke import command
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import Watching, events_of, of, run_with, tiny
from tests.storage.log.appends import chunk
from tests.storage.seaweed import Seaweed, faulty, options_of
from tests.storage.waiting import until

SEGMENT_BYTES = 1 << 20
GROWTH_BYTES = 100 << 20
"""Of the whole process, its caches and read buffers included; what the outage brings is several times that in the
long one."""
ONCE = {"retries": {"max_attempts": 0}, "read_timeout": 1, "connect_timeout": 1}


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with Seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server
    S3FileSystem.clear_instance_cache()


async def _produce(log: EventLog, stop: asyncio.Event) -> int:
    """A megabyte and a half a second, until `stop`; the number of events."""
    count = 0
    while not stop.is_set():
        await log.append([chunk(log, f"s{count + i}", 0, tokens=1500) for i in range(25)])
        count += 25
        await asyncio.sleep(0.2)
    return count


@pytest.mark.parametrize("away_s", [3.0, pytest.param(600.0, marks=pytest.mark.soak)])
async def test_the_archive_catches_up_and_memory_stays(tmp_path: Path, seaweed: Seaweed, away_s: float) -> None:
    where, process = f"s3://slime/away-{away_s:.0f}", psutil.Process()
    async with await NatsServer.start(tmp_path / "nats") as server:
        log, read = [await JetStreamLog.open(server.url, "r") for _ in range(2)]
        writer = await asyncio.to_thread(ArchiveWriter, where, "r", options_of(seaweed.port, **ONCE))
        stop, stop_archive = asyncio.Event(), asyncio.Event()
        policy = SealPolicy(max_bytes=SEGMENT_BYTES, max_age_s=1.0)
        backoff = Backoff(most_s=1.0) if away_s < 60 else Backoff()
        producing = asyncio.create_task(_produce(log, stop))
        archiving = asyncio.create_task(
            archive_run(read, writer, "archivist", stop=stop_archive, policy=policy, backoff=backoff)
        )
        await until(lambda: writer.segments)
        await asyncio.to_thread(seaweed.kill)
        before, most = process.memory_info().rss, 0
        for _ in range(int(away_s)):
            await asyncio.sleep(1.0)
            most = max(most, process.memory_info().rss)
            assert writer.pending_bytes < 2 * SEGMENT_BYTES
        assert not archiving.done()
        await asyncio.to_thread(seaweed.start)
        stop.set()
        count = await producing
        began = time.monotonic()
        stop_archive.set()
        assert await archiving is ArchiveOutcome.STOPPED
        print(f"{count} events, {(most - before) / 1e6:.0f} MB more, caught up in {time.monotonic() - began:.1f} s")
        assert most - before < GROWTH_BYTES
        reader = await asyncio.to_thread(ArchiveReader, where, "r", options_of(seaweed.port))
        archived = [(record.position, record.data) for record in reader.records()]
        assert archived == [(r.position, r.data) async for r in log.read()][: len(archived)]
        assert len(archived) >= count
        for opened_log in (log, read):
            await opened_log.close()


def test_a_run_with_a_bucket_that_takes_nothing(
    tmp_path: Path, seaweed: Seaweed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches its end and says what is missing; once the bucket takes something again, one command brings it. The
    archivist does not end either where it cannot even be opened at first.
    """

    unopened = iter((StoreUnavailable("the store is away"),) * 2)

    def opened(*args: Any, **named: Any) -> ArchiveWriter:
        if (error := next(unopened, None)) is not None:
            raise error
        return ArchiveWriter(*args, **named)

    monkeypatch.setattr("actors.ray_actors.ArchiveWriter", opened)
    monkeypatch.setattr(supervisor, "ARCHIVE_LATE_S", 0.5)
    monkeypatch.setattr(supervisor, "END_DEADLINE_S", 2.0)
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    view, folder = Watching(), tmp_path / "runs" / "denied"
    settings = tiny(tmp_path, "denied", run={"archive_url": "s3://slime/denied", "archive_seconds": 0.2,
                                             "runs_dir": str(tmp_path / "runs")})  # fmt: skip
    with faulty(seaweed.port, lambda method, _: "deny" if method in ("PUT", "POST") else None) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{port}")
        S3FileSystem.clear_instance_cache()
        with cheap_parts(Parts()), pytest.raises(DeadlineExceeded, match="slime-events archive denied"):
            asyncio.run(run_with(settings, view=view))
    assert [note for note in view.notes if note.startswith("the archive is ")]
    assert len(of(events_of(folder), RunFinished)) == 1
    assert "PermissionError" in "".join(path.read_text() for path in (folder / "logs").glob("*.log"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{seaweed.port}")
    S3FileSystem.clear_instance_cache()
    assert command("archive")([str(folder)]) == 0
    assert ArchiveReader("s3://slime/denied", "denied").closed
