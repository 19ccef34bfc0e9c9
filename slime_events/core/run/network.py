"""Addresses at which the processes of a run meet: loopback on one machine, otherwise on the network of their Ray.

Pure decisions, and the few calls that ask this machine for its addresses.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped, unused-ignore]

from schemas.errors import InvalidValue
from slime_events.core.run.process_environment import LOOPBACK_ONLY
from storage.nats.ports import HOST, is_loopback

GLOO = "GLOO_SOCKET_IFNAME"
CARRIED = ("NCCL_", "TORCH_NCCL_", "GLOO_")
"""Beginnings of the names of variables that the launcher passes to processes on other machines. They describe the
network between the machines, and all ranks need the same values.
"""
_ANY_PORT = 9
"""Port to which no packet is sent: a datagram socket needs one to choose its own address."""


def carried_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the launcher's variables that its processes on other machines need."""
    return {name: value for name, value in environment.items() if name.startswith(CARRIED)}


def meeting_host(hosts: Sequence[str]) -> str:
    """Return the address at which processes meet, the first of which listens. hosts: address of each one's machine."""
    return HOST if len(set(hosts)) <= 1 else hosts[0]


def log_host(ray: str | None) -> str:
    """Return the address for a run's own NATS server: of this machine on the network of its Ray. ray: HOST:PORT.

    It is loopback if the run starts its own Ray, or has one on loopback. Raises InvalidValue if this machine has no
    route to that Ray.
    """
    if ray is None:
        return HOST
    host = urlsplit(ray if "://" in ray else f"//{ray}").hostname or HOST
    return HOST if is_loopback(host) else address_towards(host)


def address_towards(host: str) -> str:
    """Return the address of this machine from which it reaches a host. Sends nothing. Raises InvalidValue."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidValue(f"this machine has no route to {host}: {error.strerror or error}") from error


def interface_variables(own: str, interfaces: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the variables that make torch listen on one network. own: address of this process on that network.

    interfaces: addresses of each interface of this machine. On loopback both libraries need the interface. Elsewhere
    NCCL chooses among the fast networks itself. Gloo would take the address of the machine's name, which is often a
    loopback address, so it gets the interface of `own` if there is one.
    """
    if is_loopback(own):
        return dict(LOOPBACK_ONLY)
    interface = next((name for name, addresses in interfaces.items() if own in addresses), None)
    return {GLOO: interface} if interface else {}


def listen_towards(host: str) -> None:
    """Make torch listen on the network on which this process reaches `host`, unless the environment names another."""
    own = host if is_loopback(host) else address_towards(host)
    for name, interface in interface_variables(own, _interfaces()).items():
        os.environ.setdefault(name, interface)


def _interfaces() -> dict[str, list[str]]:
    return {name: [address.address for address in addresses] for name, addresses in psutil.net_if_addrs().items()}
