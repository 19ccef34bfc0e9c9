"""Sockets of roles that answer HTTP."""

import asyncio
import socket
import time

from schemas.errors import InvalidValue
from serve_apps.gateway.settings import GatewaySettings

FREE_S = 10.0
"""How long a port may still be held by the process that was lost."""
LOOK_S = 0.1


def bound(settings: GatewaySettings) -> socket.socket:
    """A socket that listens. Raises InvalidValue."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return undelayed(socket.create_server((settings.host, settings.port), family=family))
    except OSError as error:
        raise InvalidValue(f"{settings.listens} cannot be listened on: {error.strerror}") from error


def undelayed(listening: socket.socket) -> socket.socket:
    """The same, whose connections send what there is at once. asyncio sees to that only where it has made the socket;
    otherwise a stream's second piece waits up to 40 ms for the client's word that the first has come.
    """
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def bound_again(settings: GatewaySettings) -> socket.socket:
    """The socket of a role in whose place another was. Raises InvalidValue."""
    until = time.monotonic() + FREE_S
    while True:
        try:
            return bound(settings)
        except InvalidValue:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(LOOK_S)
