"""The machines of a cluster, and the commands that make and remove their network. Nothing here starts anything."""

from __future__ import annotations

import re
from dataclasses import dataclass

SUBNET = "10.77.31"
"""Network of the machines. It exists only inside of their namespaces."""
HUB_HOST, STORE_PORT, RAY_PORT = 250, 9000, 6379
RAY_PORTS = range(10_002, 20_000)
"""Ports of Ray's workers, which listen on all addresses of a machine unless Ray is on loopback."""
RAY_PROCESSES = ("raylet", "gcs_server", "site-packages/ray/", "ray::DashboardAgent", "ray::RuntimeEnvAgent")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine: a network namespace with one interface on the hub's bridge, and private folders."""

    cluster: str
    number: int

    @property
    def name(self) -> str:
        return f"{self.cluster}-{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{self.number}"

    def commands(self) -> list[str]:
        """Return the commands that make its network."""
        name, hub = self.name, hub_name(self.cluster)
        return [
            f"ip netns add {name}",
            f"ip link add name eth0 netns {name} type veth peer name v{self.number} netns {hub}",
            f"ip -n {name} link set lo up",
            f"ip -n {name} addr add {self.address}/24 dev eth0",
            f"ip -n {name} link set eth0 up",
            f"ip -n {hub} link set v{self.number} master bridge0",
            f"ip -n {hub} link set v{self.number} up",
        ]


def hub_name(cluster: str) -> str:
    """Return the namespace of the bridge, where the S3 server listens."""
    return f"{cluster}-hub"


def hub_commands(cluster: str) -> list[str]:
    """Return the commands that make the bridge."""
    hub = hub_name(cluster)
    return [
        f"ip netns add {hub}",
        f"ip -n {hub} link set lo up",
        f"ip -n {hub} link add bridge0 type bridge",
        f"ip -n {hub} addr add {SUBNET}.{HUB_HOST}/24 dev bridge0",
        f"ip -n {hub} link set bridge0 up",
    ]


def removal_commands(names: list[str]) -> list[str]:
    """Return the commands that remove namespaces, with their interfaces. The processes in them have ended."""
    return [f"ip netns del {name}" for name in names]


@dataclass(frozen=True, slots=True)
class Listening:
    """A listening socket as `ss -ltnpH` prints it."""

    host: str
    port: int
    process: str
    pid: int | None = None

    @property
    def is_ray_s(self) -> bool:
        """Whether Ray itself opened it, on an address that a run does not choose."""
        return self.port in RAY_PORTS or any(name in self.process for name in RAY_PROCESSES)


def parse_listening(text: str) -> list[Listening]:
    """Read the output of `ss -ltnpH`."""
    sockets = []
    for line in text.splitlines():
        fields = line.split()
        host, _, port = fields[3].rpartition(":")
        name, pid = re.findall(r'"([^"]*)",pid=(\d+)', fields[5])[0] if len(fields) > 5 else ("", None)
        sockets.append(Listening(host.strip("[]").partition("%")[0], int(port), name, pid and int(pid)))
    return sockets


def beyond(sockets: list[Listening], address: str) -> list[Listening]:
    """Return the sockets of a machine that are neither on loopback nor on its address in the network, without Ray's."""
    near = ("127.0.0.1", "::1", "::ffff:127.0.0.1", address, f"::ffff:{address}")
    return [socket for socket in sockets if socket.host not in near and not socket.is_ray_s]
