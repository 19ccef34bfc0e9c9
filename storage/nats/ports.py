"""Choose stable ports for servers of this machine: a restarted server must get the address that its clients know.

The kernel assigns ports of one range to clients, and to servers that listen on port 0. While a server is down, another
process may get its port if it is in that range, so ports below the range are used.
"""

import asyncio
import errno
import ipaddress
import secrets
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

from schemas.errors import LogUnavailable

HOST = "127.0.0.1"
FIRST = 20_000
"""First port to use: lower ports are for well-known servers and Ray's workers."""
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100
_STEP_S = 0.01
FREED_S = 1.0
"""Seconds to wait for a port: a killed server releases its folder's lock before its port."""


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine reach an address or name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def with_port(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def port_is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server could listen on the port now."""
    with _socket_for(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


async def freed(port: int, host: str = HOST) -> int:
    """Wait until a server could listen on the port, and return it. Raises LogUnavailable."""
    end = time.monotonic() + FREED_S
    while not port_is_free(port, host):
        if time.monotonic() > end:
            shows = f"`ss -ltnp 'sport = :{port}'` shows the process"
            raise LogUnavailable(f"port {port} on {host} is taken: {shows}")
        await asyncio.sleep(_STEP_S)
    return port


def port_of(url: str) -> int:
    """Return the port in a server's URL."""
    return int(url.rpartition(":")[2])


def host_of(url: str) -> str:
    """Return the address in a server's URL."""
    return urlsplit(url).hostname or HOST


def free_port(host: str = HOST) -> int:
    """Return a port of `host` that is free, below the kernel's range; any free port if the kernel has no such range.

    It does not use `random`: with the user's seed, every process would choose the same port.
    """
    for _ in range(_TRIES if (end := _first_given_out()) > FIRST else 0):
        if port_is_free(port := FIRST + secrets.randbelow(end - FIRST), host):
            return port
    with _socket_for(host) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _socket_for(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def _first_given_out() -> int:
    try:
        return int(_GIVEN_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # not Linux
        return 0
