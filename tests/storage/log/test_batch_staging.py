"""Batches staged in memory: the same promises, also when the server is killed and when the folder moves."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from storage.jetstream.log import JetStreamLog
from storage.nats import batch_staging
from storage.nats.server import NatsServer
from tests.storage.log.appends import everything, reward

STREAM = Path("jetstream/$G/streams")


def staging(folder: Path) -> list[Path]:
    return list((folder / STREAM).glob("*/batches"))


async def test_a_killed_server_finds_its_staging_again_and_a_stopped_one_leaves_none(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path)
    log = await JetStreamLog.open(server.url, "staged")
    server.stage_in_memory()
    (link,) = staging(tmp_path)
    target = link.readlink()
    await log.append([reward(log, f"a{i}") for i in range(20)])
    assert link.is_symlink()
    assert target.is_dir()
    server.signal(signal.SIGKILL)
    assert await server._ended(20.0)
    shutil.rmtree(target)  # as after a reboot
    server = await NatsServer.start(tmp_path)
    await log.append([reward(log, f"b{i}") for i in range(20)])
    assert [r.position for r in await everything(log)] == list(range(1, 41))
    await log.close()
    await server.stop()
    assert not staging(tmp_path)
    assert not target.exists()


async def test_a_copied_folder_needs_nothing_of_the_old_place(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path / "here") as server:
        log = await JetStreamLog.open(server.url, "staged")
        server.stage_in_memory()
        await log.append([reward(log, f"a{i}") for i in range(3)])
        await log.close()
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    async with await NatsServer.start(tmp_path / "there") as server:
        log = await JetStreamLog.open(server.url, "staged")
        await log.append([reward(log, f"b{i}") for i in range(3)])
        assert len(await everything(log)) == 6
        await log.close()


@pytest.mark.parametrize("memory", [True, False])
def test_parts_of_a_cut_batch_stay_where_the_server_looks_for_them(tmp_path: Path, memory: bool) -> None:
    part = tmp_path / STREAM / "SLIME_x" / "batches" / "part"
    part.mkdir(parents=True)
    if memory:
        (tmp_path / "memory").mkdir()
    assert batch_staging.stage_in_memory(tmp_path, tmp_path / "memory") == []
    assert part.is_dir()


def test_without_a_tmpfs_a_link_that_leads_nowhere_goes(tmp_path: Path) -> None:
    (tmp_path / STREAM / "SLIME_x").mkdir(parents=True)
    (tmp_path / "memory").mkdir()
    assert batch_staging.stage_in_memory(tmp_path, tmp_path / "memory") == ["SLIME_x"]
    shutil.rmtree(tmp_path / "memory")
    assert batch_staging.stage_in_memory(tmp_path, tmp_path / "memory") == []
    assert not staging(tmp_path)


async def test_a_killed_server_that_is_stopped_afterwards_keeps_what_it_had_staged(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path)
    log = await JetStreamLog.open(server.url, "staged")
    server.stage_in_memory()
    server.signal(signal.SIGKILL)
    assert await server._ended(20.0)
    await log.close()
    await server.stop()
    assert [link.is_symlink() for link in staging(tmp_path)] == [True]
    async with await NatsServer.start(tmp_path):
        pass
