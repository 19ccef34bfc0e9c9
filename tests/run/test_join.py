"""Joining a run whose log is away."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from slime_events.core.run.join import open_log
from slime_events.core.run.run_address import RunAddress
from storage.jetstream.address import address_of
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer


async def test_a_process_that_starts_while_nats_is_away_waits_as_long_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await NatsServer.start(tmp_path)
    await (await JetStreamLog.open(before.url, "demo")).close()
    before.signal(signal.SIGKILL)
    await before.stop()
    where = str(tmp_path)
    address = RunAddress(
        run="demo", nats=address_of(before.url), folder=where, blob_url=where, archive_url=where, weights_url=where
    )
    monkeypatch.setitem(JetStreamLog.open.__func__.__kwdefaults__, "deadline_s", 0.1)  # of a reader, who does not wait
    opening = asyncio.create_task(open_log(address))
    await asyncio.sleep(0.5)
    async with await NatsServer.start(tmp_path, port=before.port):
        log = await opening
        assert await log.position() == 0
        await log.close()
