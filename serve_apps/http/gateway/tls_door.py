"""`TlsDoor`: a connection during its TLS handshake, which has the same deadline as a request's head."""

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import cast

from serve_apps.http.gateway.connections import Connections


class TlsDoor(asyncio.Protocol):
    """Makes the TLS handshake. A failed handshake closes the connection. http: creates the protocol that follows it."""

    def __init__(
        self, shared: Connections, seconds: float, context: ssl.SSLContext, http: Callable[[], asyncio.Protocol]
    ) -> None:
        self._shared, self._seconds, self._context, self._http = shared, seconds, context, http
        self.address, self._early = "", bytearray()
        self._late_at: float
        self._plain: asyncio.Transport
        self._handshake: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake. transport: TCP; asyncio does not call this again for the TLS connection."""
        peer = transport.get_extra_info("peername")
        self._plain, self.address = cast(asyncio.Transport, transport), str(peer[0]) if peer else ""
        self._plain.pause_reading()
        self._late_at = time.monotonic() + self._seconds
        self._shared.add(self)
        if not transport.is_closing():
            self._handshake = asyncio.create_task(self._shake_hands())

    def data_received(self, data: bytes) -> None:
        """Keep data that arrives together with the end of the handshake."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.remove(self)

    def look(self, now: float) -> None:
        """Close the connection if the handshake is late. now: seconds of a monotonic clock."""
        if now > self._late_at:
            self.drop()

    def drop(self) -> None:
        """Close the connection at once."""
        self._shared.remove(self)
        self._plain.abort()

    async def _shake_hands(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                self._plain, self, self._context, server_side=True, ssl_handshake_timeout=self._seconds
            )
        except (OSError, EOFError):  # OSError includes ssl.SSLError and TimeoutError
            self.drop()
            return
        finally:
            self._shared.remove(self)
        if secured is None or secured.is_closing():
            self.drop()
            return
        protocol = self._http()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(bytes(self._early))
