"""Test that a run has one launcher, and that nothing of a killed one stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.errors import RunIsOn
from slime_events.app.launch.launcher_presence import check_absent, present
from slime_events.app.launch.run_lock import MARK, holding, is_held
from slime_events.core.run.orphans import end_orphans
from slime_events.core.run.run_folder import RunFolder
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from storage.open_log import open_run_log, own_server

HOLD = """
import sys, time
from slime_events.app.launch.run_lock import holding
from slime_events.core.run.run_folder import RunFolder
with holding(RunFolder(sys.argv[1], "demo")):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lock_ends_with_its_holder_however_it_ends(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "demo")
    assert not is_held(folder)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert is_held(folder)
        with pytest.raises(RunIsOn, match=f"run demo is running, launched by process {holder.pid}"), holding(folder):
            pass
        holder.kill()
    assert not is_held(folder)
    with holding(folder) as before:
        assert before is not None
        assert before.pid == holder.pid
        assert os.environ[MARK] != before.mark
    assert MARK not in os.environ


def test_only_what_carries_the_mark_is_ended() -> None:
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    marks = ("killed", "killed", "other")
    left, spared, other = (subprocess.Popen(sleeping, env=os.environ | {MARK: mark}) for mark in marks)
    try:
        assert end_orphans("killed", (spared.pid,), variable=MARK) == 1
        left.wait(10)
        assert spared.poll() is None
        assert other.poll() is None
        assert end_orphans("nobody's", variable=MARK) == 0
    finally:
        for process in (left, spared, other):
            process.kill()
            process.wait()


async def test_a_launcher_answers_for_its_run_over_nats(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path / "nats") as server:
        here, there = [await JetStreamLog.open(server.url, "demo") for _ in range(2)]
        await check_absent(there)
        async with present(here):
            with pytest.raises(RunIsOn, match=f"run demo is running, launched by process {os.getpid()} on"):
                await check_absent(there)
        await check_absent(there)
        for log in (here, there):
            await log.close()


async def test_a_server_that_readers_started_becomes_the_launchers(tmp_path: Path) -> None:
    async with await NatsServer.start(tmp_path / "nats") as server:
        await (await JetStreamLog.open(server.url, "demo")).close()
    async with open_run_log(tmp_path, "demo"):
        reading = NatsServer.attach(tmp_path / "nats")
        assert reading is not None
        assert reading.record.temporary
        own = await own_server(tmp_path, "demo")
        assert own.pid == reading.pid
    assert own.alive, "the last reader leaves it"
    await own.stop()
    assert not own.alive
