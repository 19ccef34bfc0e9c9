"""`NatsCluster`: several NATS servers on loopback that keep one log, each with a copy of its own.

    <folder>/routes.json      the ports by which the nodes find each other
    <folder>/node-<i>/        one `NatsServer` each (storage/nats/server.py)

A stream with three replicas continues while any two of three nodes live: what was acked is on the disks of at least
two. A node that comes back catches up from the others. Losing the leader costs an election, 4 to 10 seconds without
acks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Sequence
from pathlib import Path

from schemas.errors import StorageError
from schemas.subjects import stream_name
from storage.jetstream.connection import Connection
from storage.jetstream.retry import Away, log_wait
from storage.nats.ports import HOST, free_port
from storage.nats.server import NatsServer

ROUTES_FILE = "routes.json"
READY_S = 60.0


class NatsCluster:
    """See the module. `start` one; every node listens for clients and for the other nodes on 127.0.0.1 only."""

    def __init__(self, folder: Path, routes: list[int], nodes: list[NatsServer]) -> None:
        self._folder, self._routes, self._nodes = folder, routes, nodes

    @property
    def urls(self) -> list[str]:
        """Return the addresses for clients, by node. A node keeps its address over a restart."""
        return [node.url for node in self._nodes]

    @property
    def url(self) -> str:
        """All of them as `--nats-url` takes them."""
        return ",".join(self.urls)

    @property
    def nodes(self) -> list[NatsServer]:
        """The servers, by node; one that was killed is there too, not alive."""
        return list(self._nodes)

    @classmethod
    async def start(cls, folder: Path, nodes: int = 3, *, deadline_s: float = READY_S) -> NatsCluster:
        """Start all nodes on a new or an old folder, and wait until they have agreed on a leader.

        Raises what `NatsServer.start` does, and LogUnavailable where they find no leader within `deadline_s`.
        """
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        routes, ports = _ports_of(folder, nodes)
        starts = (_start(folder, routes, node, port) for node, port in enumerate(ports))
        started = await asyncio.gather(*starts, return_exceptions=True)
        servers = [server for server in started if isinstance(server, NatsServer)]
        self = cls(folder, routes, servers)
        try:
            for result in started:
                if isinstance(result, BaseException):
                    raise result
            await asyncio.gather(*(_answers(server.url, deadline_s) for server in servers))
        except BaseException:
            await self.stop()
            raise
        return self

    async def kill(self, node: int) -> None:
        """SIGKILL, and wait until the process has gone."""
        self._nodes[node].signal(signal.SIGKILL)
        await self._nodes[node].stop()

    async def restart(self, node: int, *, deadline_s: float = READY_S) -> None:
        """Start a node that is down on its folder and address; it is ready when it has found the others' leader."""
        self._nodes[node] = await _start(self._folder, self._routes, node)
        await _answers(self._nodes[node].url, deadline_s)

    async def leader(self, run: str, *, deadline_s: float = READY_S) -> int:
        """Return the node that leads the log of a run. Raises LogUnavailable if none does within `deadline_s`."""
        connection = await _connect(self.url, deadline_s)
        try:
            while True:
                info = await connection.api(f"STREAM.INFO.{stream_name(run)}", deadline_s=deadline_s)
                if leader := info["cluster"].get("leader"):
                    return int(leader.removeprefix("node-"))
                await asyncio.sleep(0.1)
        finally:
            await connection.close()

    async def stop(self) -> None:
        """End all nodes. Their folders stay."""
        await asyncio.gather(*(node.stop() for node in self._nodes))

    async def __aenter__(self) -> NatsCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


async def _start(folder: Path, routes: list[int], node: int, port: int | None = None) -> NatsServer:
    return await NatsServer.start(folder / f"node-{node}", port=port, more=_cluster_text(routes, node))


def _cluster_text(routes: list[int], node: int) -> str:
    others = ", ".join(f'"nats-route://{HOST}:{port}"' for i, port in enumerate(routes) if i != node)
    return "\n".join(
        (
            f"server_name: node-{node}",
            "cluster {",
            "  name: slime-events",
            f'  listen: "{HOST}:{routes[node]}"',
            f"  routes: [{others}]",
            "}",
            "",
        )
    )


def _ports_of(folder: Path, nodes: int) -> tuple[list[int], Sequence[int | None]]:
    """The nodes' ports for each other and for clients: new ones that are free now, or those they had before, of which
    each node knows its own for clients.
    """
    file = folder / ROUTES_FILE
    with contextlib.suppress(FileNotFoundError):
        routes = [int(port) for port in json.loads(file.read_text())]
        if len(routes) != nodes:
            raise StorageError(f"{folder} holds a cluster of {len(routes)} nodes, not {nodes}: start it with as many")
        return routes, [None] * nodes
    ports = free_ports(2 * nodes)
    routes, clients = ports[:nodes], ports[nodes:]
    file.write_text(json.dumps(routes))
    return routes, clients


async def _connect(url: str, deadline_s: float) -> Connection:
    return await Connection.open(url, deadline_s=deadline_s, retry_s=deadline_s, on_wait=log_wait)


async def _answers(url: str, deadline_s: float) -> None:
    """Until JetStream answers at a node. While its cluster has no leader it does not answer at all."""
    connection = await _connect(url, deadline_s)
    retry = connection.retry()
    try:
        while True:
            try:
                await asyncio.wait_for(connection.request("$JS.API.INFO", b""), 0.25)
                return
            except (TimeoutError, Away):
                await retry.pause("its cluster has no leader yet: are most of the nodes up?")
    finally:
        await connection.close()


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
