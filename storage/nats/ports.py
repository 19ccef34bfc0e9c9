"""Ports for servers on loopback that stay theirs: a server that starts again must get the address that others know.

The kernel gives ports of one range to all that connect, and to all that listen on port 0. A server that is down for a
moment may find its port of that range in somebody's hands; below it nobody gets one by chance.
"""

import asyncio
import errno
import secrets
import socket
import time
from pathlib import Path

from schemas.errors import LogUnavailable

HOST = "127.0.0.1"
FIRST = 20_000
"""Below are the ports of well-known servers, and those of Ray's workers."""
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 100
_STEP_S = 0.01
FREED_S = 1.0
"""Seconds that a port is waited for: a server that was killed lets go of its folder's lock before its port."""


def port_is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


async def freed(port: int) -> int:
    """The port, once a server could listen there. Raises LogUnavailable."""
    end = time.monotonic() + FREED_S
    while not port_is_free(port):
        if time.monotonic() > end:
            shows = f"`ss -ltnp 'sport = :{port}'` shows by which process"
            raise LogUnavailable(f"port {port} on {HOST} is taken: {shows}")
        await asyncio.sleep(_STEP_S)
    return port


def port_of(url: str) -> int:
    """That of a server's URL."""
    return int(url.rpartition(":")[2])


def free_port() -> int:
    """One that is free now, and that the kernel gives to nobody; any free one where it keeps no such range.

    Not of `random`, which a seed of the user's makes choose the same in every process.
    """
    for _ in range(_TRIES if (end := _first_given_out()) > FIRST else 0):
        if port_is_free(port := FIRST + secrets.randbelow(end - FIRST)):
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _first_given_out() -> int:
    try:
        return int(_GIVEN_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):  # no Linux
        return 0
