"""Measure the cost of leases: 64 engines that hold 256 requests each and do nothing else.

Each engine has its own connection to a real server, and renews leases as the rollout worker does. Engines generate
nothing, so leases are their only messages. The file does not use our code for leases, so that it also runs with an
older version.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens
from schemas.doc import doc
from schemas.rollouts import RolloutRequested, Sampling
from schemas.subjects import of_type
from slime_events.core.config.engine import LEASE_S
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from storage.jetstream.log import JetStreamLog
from storage.log import Delivery, append_all, once
from storage.nats.server import NatsServer

RUN = "bench"
ENGINES, REQUESTS = 64, 256
A_CALL = 6 / LEASE_S
"""Target of lease messages per second and engine: one at a time, six in a lease."""


class Rates(NamedTuple):
    """Rates over the measured seconds."""

    sent: Annotated[float, doc("Messages per second of all engines")]
    engines_cpu: Annotated[float, doc("Cores that all engines use")]
    server_cpu: Annotated[float, doc("Cores that the server uses")]


def measure(engines: int = ENGINES, requests: int = REQUESTS, seconds: float = 15.0) -> list[Figure]:
    """Measure messages while all requests are in work."""
    with tempfile.TemporaryDirectory() as folder:
        rates = asyncio.run(_measure(Path(folder), engines, requests, seconds))
    note = (
        f"of a core, all engines together take {rates.engines_cpu:.0%}, renewal included, and the server "
        f"{rates.server_cpu:.0%}; lease {LEASE_S:g} s"
    )
    return [
        Figure(
            name=f"lease messages, {engines} engines x {requests}",
            value=rates.sent,
            unit="/s",
            target=1.1 * engines * A_CALL,
            better=Better.LOWER,
            note=note,
        )
    ]


async def _measure(folder: Path, engines: int, requests: int, seconds: float) -> Rates:
    async with await NatsServer.start(folder / "nats") as server, contextlib.AsyncExitStack() as stack:
        log = await JetStreamLog.open(server.url, RUN)
        stack.push_async_callback(log.close)
        await _ask(log, engines * requests)
        logs = [await stack.enter_async_context(_engine(server, requests)) for _ in range(engines)]
        await asyncio.sleep(2 * LEASE_S)  # until the messages of the start are over
        before, at = _counts(logs, server), time.perf_counter()
        await asyncio.sleep(seconds)
        after, passed = _counts(logs, server), time.perf_counter() - at
        return Rates(*((b - a) / passed for a, b in zip(before, after, strict=True)))


async def _ask(log: JetStreamLog, requests: int) -> None:
    conductor = Participant(log, "conductor")
    events = (
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
    await append_all(log, [once(conductor.enclose(event)) for event in events])


@contextlib.asynccontextmanager
async def _engine(server: NatsServer, requests: int) -> AsyncIterator[JetStreamLog]:
    """Hold requests as one engine, and renew them as `RolloutWorker` does; yields its log."""
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
        sum(counts["out_msgs"] for counts in stats),
        time.process_time(),
        sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
    )
