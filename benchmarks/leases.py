"""What it takes to keep requests in work: 64 engines that hold 256 requests each and do nothing else.

Each has a connection of its own to a real server, and renews as the rollout worker does. They generate nothing, so all
that they send are leases. The file uses no part of how leases are kept: it runs beside an older version of the code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens
from schemas.rollouts import RolloutRequested, Sampling
from schemas.subjects import of_type
from serve_apps.rollout_worker import LEASE_S
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from storage.jetstream.log import JetStreamLog
from storage.log import Delivery, append_all, once
from storage.nats.server import NatsServer

RUN = "bench"
ENGINES, REQUESTS = 64, 256
A_CALL = 6 / LEASE_S
"""Lease messages of one engine a second, at most, to be asked of 64: one at a time, six in a lease."""


class Found(NamedTuple):
    """Messages a second that all engines send; seconds of the processor that they and the server take in one."""

    sent: float
    engines_cpu: float
    server_cpu: float


def measure(engines: int = ENGINES, requests: int = REQUESTS, seconds: float = 15.0) -> list[Figure]:
    """Messages that engines send while all their requests are in work."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_measure(Path(folder), engines, requests, seconds))
    note = (
        f"of a core, all engines together take {found.engines_cpu:.0%}, with what renews, and the server "
        f"{found.server_cpu:.0%}; lease {LEASE_S:g} s"
    )
    return [
        Figure(
            name=f"lease messages, {engines} engines x {requests}",
            value=found.sent,
            unit="/s",
            target=1.1 * engines * A_CALL,
            better=Better.LOWER,
            note=note,
        )
    ]


async def _measure(folder: Path, engines: int, requests: int, seconds: float) -> Found:
    async with await NatsServer.start(folder / "nats") as server, contextlib.AsyncExitStack() as stack:
        log = await JetStreamLog.open(server.url, RUN)
        stack.push_async_callback(log.close)
        await _ask(log, engines * requests)
        logs = [await stack.enter_async_context(_engine(server, requests)) for _ in range(engines)]
        await asyncio.sleep(2 * LEASE_S)  # what was said at the start is over
        before, at = _counts(logs, server), time.perf_counter()
        await asyncio.sleep(seconds)
        after, passed = _counts(logs, server), time.perf_counter() - at
        return Found(*((b - a) / passed for a, b in zip(before, after, strict=True)))


async def _ask(log: JetStreamLog, requests: int) -> None:
    conductor = Participant(log, "conductor")
    asked = (
        RolloutRequested(
            sample=f"s{number}",
            group=f"g{number}",
            index=0,
            prompt=pack_tokens(range(256)),
            sampling=Sampling(max_new_tokens=8192),
            seed=number,
        )
        for number in range(requests)
    )
    await append_all(log, [once(conductor.enclose(event)) for event in asked])


@contextlib.asynccontextmanager
async def _engine(server: NatsServer, requests: int) -> AsyncIterator[JetStreamLog]:
    """One engine that holds its requests; its log. It renews them as `RolloutWorker` does."""
    log, incarnation = await JetStreamLog.open(server.url, RUN, create=False), Incarnation()
    consumer = await log.consume(incarnation.queue, of_type(RUN, "rollout.requested"), lease_s=LEASE_S)
    held: list[Delivery] = []

    async def renew() -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            await asyncio.gather(*(delivery.working() for delivery in held))

    task = asyncio.create_task(renew())
    try:
        while len(held) < requests:
            held += await consumer.take(requests - len(held), 5.0)
        yield log
    finally:
        task.cancel()
        await consumer.close()
        await log.close()


def _counts(logs: list[JetStreamLog], server: NatsServer) -> tuple[float, float, float]:
    stats = [log.connection.client.stats for log in logs]
    ticks = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (
        sum(one["out_msgs"] for one in stats),
        time.process_time(),
        sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
    )
