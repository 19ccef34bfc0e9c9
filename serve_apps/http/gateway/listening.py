"""Sockets of roles that serve HTTP."""

import asyncio
import socket
import time

from schemas.errors import InvalidValue
from serve_apps.http.gateway.settings import GatewaySettings

FREE_S = 10.0
"""Seconds to wait for a port that a lost process may still hold."""
LOOK_S = 0.1


def bound(settings: GatewaySettings) -> socket.socket:
    """Return a listening socket. Raises InvalidValue."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return undelayed(socket.create_server((settings.host, settings.port), family=family))
    except OSError as error:
        raise InvalidValue(f"{settings.listens}: cannot listen there: {error.strerror}") from error


def undelayed(listening: socket.socket) -> socket.socket:
    """Set TCP_NODELAY on a socket and return it. asyncio sets it only for sockets that asyncio creates.

    Without it, the second piece of a stream waits up to 40 ms for the acknowledgment of the first.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def bound_again(settings: GatewaySettings) -> socket.socket:
    """Return a listening socket, once a lost process no longer holds the port. Raises InvalidValue after FREE_S."""
    until = time.monotonic() + FREE_S
    while True:
        try:
            return bound(settings)
        except InvalidValue:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(LOOK_S)
