"""The archive on a real S3 server that refuses, dawdles, loses answers and dies."""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3fs import S3FileSystem

from actors.archivist import ArchiveOutcome, Backoff, SealPolicy, archive_run
from schemas.errors import ArchiveDamaged, DeadlineExceeded, StoreUnavailable
from storage.archive.reader import ArchiveReader
from storage.archive.transfer import repair_archive, restore_log
from storage.archive.writer import ArchiveWriter
from storage.blobs import BlobStore
from storage.folders import retry
from storage.folders.cache import HostCache
from storage.folders.remote import RemoteFolders
from storage.memory_log import MemoryLog
from storage.nats.ports import HOST
from storage.object_store import ObjectFolder
from tests.storage.archived import a_log, all_there
from tests.storage.seaweed import Seaweed, faulty, options_of
from tests.storage.waiting import until

EAGER = SealPolicy(max_bytes=1500, max_age_s=0.05, look_s=0.01)
BRISK = Backoff(first_s=0.05, most_s=0.5, deadline_s=180.0)
ONCE = {"retries": {"max_attempts": 0}, "read_timeout": 1, "connect_timeout": 1}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    with Seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


def url() -> str:
    return f"s3://slime/{next(_numbers)}"


def blob_store() -> BlobStore:
    return BlobStore(f"memory://real-s3-{next(_numbers)}")


async def archive(log: MemoryLog, where: str, options: dict[str, Any], blobs: BlobStore) -> ArchiveOutcome:
    writer = await asyncio.to_thread(ArchiveWriter, where, "r", options, blobs=blobs)
    return await archive_run(log, writer, "archivist", policy=EAGER, backoff=BRISK)


async def check(log: MemoryLog, where: str, options: dict[str, Any]) -> None:
    """Restored from the archive alone it is the same log, with its blobs."""
    reader, again, blobs = await asyncio.to_thread(ArchiveReader, where, "r", options), MemoryLog("r"), blob_store()
    await restore_log(reader, again, blobs)
    assert again.records == log.records
    assert reader.closed
    all_there(again, blobs)


async def test_a_run_is_archived_and_restored(seaweed: Seaweed) -> None:
    here, where, options = blob_store(), url(), options_of(seaweed.port)
    log = await a_log(here, [5, 90] * 20, finished=True)
    assert await archive(log, where, options, here) is ArchiveOutcome.FINISHED
    await check(log, where, options)


async def test_refusals_cuts_lost_and_late_answers(seaweed: Seaweed) -> None:
    """Every third request or so goes wrong: first once in each way, then in any."""
    dice, here, where = random.Random(3), blob_store(), url()
    any_way = ["refuse", "cut", "lose", "refuse", "lose", "slow"]
    kinds = itertools.chain(("refuse", "cut", "lose", "slow"), iter(lambda: dice.choice(any_way), None))
    log = await a_log(here, [5, 90] * 4, finished=True)
    wrong: list[str] = []

    def fault(method: str, number: int) -> str | None:
        kind = next(kinds) if dice.random() < 0.35 else None
        wrong.extend([kind] if kind else [])
        return kind

    with faulty(seaweed.port, fault) as port:
        opened = await _opened(where, options_of(port, **ONCE), here)
        assert await archive_run(log, opened, "a", policy=EAGER, backoff=BRISK) is ArchiveOutcome.FINISHED
    assert set(wrong) == {"refuse", "cut", "lose", "slow"}
    await check(log, where, options_of(seaweed.port))


async def _opened(where: str, options: dict[str, Any], blobs: BlobStore) -> ArchiveWriter:
    """Retry until it opens."""
    while True:
        try:
            return await asyncio.to_thread(ArchiveWriter, where, "r", options, blobs=blobs)
        except Exception:
            await asyncio.sleep(0.05)


async def test_a_store_that_stays_broken_ends_with_a_reason(seaweed: Seaweed) -> None:
    here = blob_store()
    log = await a_log(here, [5, 5], finished=True)
    writer = await asyncio.to_thread(ArchiveWriter, where := url(), "r", options_of(seaweed.port), blobs=here)
    with faulty(seaweed.port, lambda *_: "refuse") as port:
        writer._objects = ObjectFolder(writer.url, options_of(port, **ONCE))
        short = Backoff(first_s=0.05, deadline_s=1.0)
        with pytest.raises(DeadlineExceeded, match=rf"waited \d+ s for the archive's store: {where}/r/segments"):
            async with asyncio.timeout(120):
                await archive_run(log, writer, "a", policy=EAGER, backoff=short)


async def test_a_server_that_is_killed_is_waited_for(seaweed: Seaweed) -> None:
    here, where, options = blob_store(), url(), options_of(seaweed.port, **ONCE)
    log = await a_log(here, [5] * 60, finished=True)
    writer = await _opened(where, options, here)
    archiving = asyncio.create_task(archive_run(log, writer, "a", policy=EAGER, backoff=BRISK))
    await until(lambda: writer.segments)
    await asyncio.to_thread(seaweed.kill)
    await asyncio.to_thread(seaweed.start)
    assert await archiving is ArchiveOutcome.FINISHED
    await check(log, where, options_of(seaweed.port))


async def test_a_flipped_bit_is_named_refused_and_mended(seaweed: Seaweed) -> None:
    here, where, options = blob_store(), url(), options_of(seaweed.port)
    log = await a_log(here, [5] * 40, finished=True)
    await archive(log, where, options, here)
    reader = await asyncio.to_thread(ArchiveReader, where, "r", options)
    bad, objects = reader.segments[1], ObjectFolder(reader.url, options)
    good = await asyncio.to_thread(objects.read, bad.name)
    await asyncio.to_thread(objects.replace, bad.name, good[:-9] + bytes([good[-9] ^ 4]) + good[-8:])
    with pytest.raises(ArchiveDamaged, match=rf"segment 2 \(positions {bad.first} to {bad.last}\)"):
        await check(log, where, options)
    assert await repair_archive(log, where, "r", options) == [bad]
    await check(log, where, options)


def test_folders_pass_a_store_that_misbehaves(
    seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and checkpoints: each file is uploaded and downloaded whole, or tried again."""
    dice, wrong, data = random.Random(5), list[str](), {f"f{n}": random.Random(n).randbytes(3000) for n in range(6)}
    kinds = itertools.chain(("refuse", "cut", "lose"), iter(lambda: dice.choice(["refuse", "cut", "lose"]), None))
    monkeypatch.setattr(retry, "FIRST_S", 0.01)
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)

    def fault(method: str, number: int) -> str | None:
        kind = next(kinds) if dice.random() < 0.3 else None
        wrong.extend([kind] if kind else [])
        return kind

    with faulty(seaweed.port, fault) as port:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{port}")
        S3FileSystem.clear_instance_cache()
        place = url()
        for number in range(3):
            here = RemoteFolders(place, HostCache(tmp_path / "here"), retry_s=60.0)
            draft = here.work / ".draft"
            draft.mkdir(parents=True)
            for name, content in data.items():
                (draft / name).write_bytes(content)
            here.publish(draft, f"v00000{number}-a")
            there = RemoteFolders(place, HostCache(tmp_path / f"there-{number}"), retry_s=60.0)
            with there.open(f"v00000{number}-a") as folder:
                assert {path.name: path.read_bytes() for path in folder.iterdir()} == data
        there.remove(["v000001-"])
        assert there.names() == ["v000000-a", "v000002-a"]
    S3FileSystem.clear_instance_cache()
    assert set(wrong) == {"refuse", "cut", "lose"}


def test_a_missing_bucket_and_a_closed_port_are_named(
    seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for port in (seaweed.port, 1):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{HOST}:{port}")
        S3FileSystem.clear_instance_cache()
        store = RemoteFolders("s3://nowhere/weights", HostCache(tmp_path), retry_s=0.0)
        (tmp_path / "file").write_bytes(b"x")
        with pytest.raises(StoreUnavailable) as error:
            store.upload("v000001-a", tmp_path, {"file": "file"})
        assert "s3://nowhere/weights/v000001-a/file" in str(error.value)
        assert socket.gethostname() in str(error.value)
    S3FileSystem.clear_instance_cache()
