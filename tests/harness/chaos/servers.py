"""Servers of the run's log: the one that the run starts itself, or a cluster beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

from storage.jetstream.address import NatsAddress
from storage.nats.accounts import Access
from storage.nats.server import NatsServer
from tests.storage.nats_cluster import NatsCluster

NODES = 3
AWAY_S = 2.0
"""Seconds for which a killed node stays down."""


class Servers(Protocol):
    """Servers of the run's log. flags: those of the run's command that name the servers."""

    flags: tuple[str, ...]

    def url(self) -> NatsAddress | str | None:
        """Return where the log answers; None while it does not."""

    def pids(self) -> list[int]:
        """Return the pids of the servers that live."""

    def beside(self) -> list[int]:
        """Return the pids of servers that are not the run's, and stay when it is over."""

    async def mend(self) -> None:
        """Restart servers that are not the run's own, until cancelled."""

    async def stop(self) -> None:
        """End the servers that the run does not end."""


class OwnServer:
    """The embedded server, which the launcher starts and restarts."""

    flags: tuple[str, ...] = ()

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / "nats"

    def url(self) -> NatsAddress | None:
        server = NatsServer.attach(self._folder)
        return server.address(Access.ROLES) if server else None

    def pids(self) -> list[int]:
        server = NatsServer.attach(self._folder)
        return [server.pid] if server else []

    def beside(self) -> list[int]:
        return []

    async def mend(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        pass


class Cluster:
    """NODES servers with a copy of the log each. A node that was killed comes back after AWAY_S."""

    def __init__(self, cluster: NatsCluster) -> None:
        self._cluster = cluster
        self.flags: tuple[str, ...] = ("--nats-url", cluster.url, "--nats-replicas", str(NODES))

    @classmethod
    async def start(cls, folder: Path) -> Cluster:
        """Start all nodes on a new folder."""
        return cls(await NatsCluster.start(folder, NODES))

    def url(self) -> str | None:
        return self._cluster.url

    def pids(self) -> list[int]:
        return [node.pid for node in self._cluster.nodes if node.alive]

    def beside(self) -> list[int]:
        return self.pids()

    async def mend(self) -> None:
        while True:
            dead = [number for number, node in enumerate(self._cluster.nodes) if not node.alive]
            if dead:
                await asyncio.sleep(AWAY_S)
                await asyncio.gather(*map(self._cluster.restart, dead))
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await self._cluster.stop()
