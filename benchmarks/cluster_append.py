"""Measure what a cluster of three NATS servers stores in a second, as a share of what one server stores, by turns.

Each event of the cluster is on the disks of two nodes before its ack. All nodes and the clients share the machine's
cores, so CPU per event is measured too: it holds for machines of their own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.append import appended_per_s, batches_per_s, fenced, reward, rollout
from benchmarks.figure import Figure
from schemas.doc import doc
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from tests.storage.nats_cluster import NatsCluster

ROUNDS = 3
RUN = "bench"


class Rates(NamedTuple):
    """What a server or a cluster stores."""

    rollouts: Annotated[float, doc("Rollouts of 33 KB per second")]
    small: Annotated[float, doc("Small events per second")]
    rollout_cpu_us: Annotated[float, doc("CPU of the busiest server for a rollout [us]")]
    small_cpu_us: Annotated[float, doc("CPU of the busiest server for a small event [us]")]


def measure(rollouts: int = 1000, rewards: int = 10_000, rounds: int = ROUNDS) -> list[Figure]:
    """Return medians of both over the same number of rounds."""
    with tempfile.TemporaryDirectory() as folder:
        alone, cluster = asyncio.run(_measure(Path(folder), rollouts, rewards, rounds))
    return [_figure("4k tokens", alone, cluster, "rollouts"), _figure("small events", alone, cluster, "small")]


def _figure(name: str, alone: Sequence[Rates], cluster: Sequence[Rates], what: str) -> Figure:
    one, three = (statistics.median(getattr(rates, what) for rates in each) for each in (alone, cluster))
    cpu = "small_cpu_us" if what == "small" else "rollout_cpu_us"
    busiest = [statistics.median(getattr(rates, cpu) for rates in each) for each in (alone, cluster)]
    note = (
        f"{three:,.0f}/s on three nodes, {one:,.0f}/s on one server; CPU of the busiest node {busiest[1]:.0f} us an "
        f"event, of one server {busiest[0]:.0f} us"
    )
    return Figure(name=f"cluster / one server, {name}", value=three / one, unit="x", note=note)


async def _measure(folder: Path, rollouts: int, rewards: int, rounds: int) -> tuple[list[Rates], list[Rates]]:
    alone, together = list[Rates](), list[Rates]()
    async with await NatsServer.start(folder / "one") as server, await NatsCluster.start(folder / "three") as cluster:
        for number in range(rounds):
            alone.append(await _rates(server.url, [server], f"{RUN}-one-{number}", 1, rollouts, rewards))
            together.append(await _rates(cluster.url, cluster.nodes, f"{RUN}-three-{number}", 3, rollouts, rewards))
    return alone, together


async def _rates(
    url: str, servers: Sequence[NatsServer], run: str, replicas: int, rollouts: int, rewards: int
) -> Rates:
    """Measure one log. Events are made and encoded before the clock starts."""
    large = [fenced(run, rollout(number)) for number in range(rollouts)]
    small = [fenced(run, reward(number)) for number in range(rewards)]
    for append in (*large, *small):
        append.encoded()
    log = await JetStreamLog.open(url, run, replicas=replicas)
    try:
        before = _cpu(servers)
        rollouts_per_s, between = await appended_per_s(log, large, callers=256), _cpu(servers)
        small_per_s, after = await batches_per_s(log, small, 500), _cpu(servers)
    finally:
        await log.close()
    busy = [max(b - a for a, b in zip(*span, strict=True)) for span in ((before, between), (between, after))]
    return Rates(rollouts_per_s, small_per_s, 1e6 * busy[0] / rollouts, 1e6 * busy[1] / rewards)


def _cpu(servers: Sequence[NatsServer]) -> list[float]:
    """Return the CPU seconds of each server so far."""
    ticks = [Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13] for server in servers]
    return [sum(map(int, pair)) / os.sysconf("SC_CLK_TCK") for pair in ticks]
