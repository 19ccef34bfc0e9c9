"""Checks of `doctor`: whether a NATS server lets anybody in, and whether it lets these credentials in."""

import asyncio
import json
import socket
import ssl
from urllib.parse import urlsplit

from schemas.errors import ConfigError, MissingPart, StorageError
from slime_events.app.cli.checks import Check, Outcome
from storage.jetstream.address import NatsPlace
from storage.jetstream.connection import Connection

NAME = "nats access"
_STRANGER = b'CONNECT {"verbose":false,"pedantic":false,"lang":"doctor","version":"0","protocol":1}\r\nPING\r\n'


def check_anybody(url: str, limit_s: float = 5.0) -> Check:
    """One node of a server: a stranger must not be let in."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    where = f"{parts.hostname}:{parts.port or 4222}"
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222), limit_s) as connection:
            is_open = _lets_in(connection)
    except (OSError, ValueError):  # it hangs up, asks for a certificate, or does not answer, which another check says
        is_open = False
    if is_open:
        mend = "`slime-events nats-config` prints accounts and permissions for it"
        return Check(NAME, Outcome.WARN, f"{where} lets anybody in, who then may write into every run", mend)
    return Check(NAME, Outcome.OK, f"{where} admits nobody without credentials")


def _lets_in(connection: socket.socket) -> bool:
    greeting = connection.makefile("rb", buffering=0).readline(65536)
    if json.loads(greeting.partition(b" ")[2]).get("tls_required"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is entrusted to it
        connection = context.wrap_socket(connection)
    connection.sendall(_STRANGER)
    words = (line.split()[0] for line in connection.makefile("rb") if line.strip())
    return next((word == b"PONG" for word in words if word in (b"PONG", b"-ERR")), False)


def check_credentials(place: NatsPlace, limit_s: float = 5.0) -> Check:
    """Those that are given, files and certificates included."""
    try:
        asyncio.run(_connect(place, limit_s))
    except (StorageError, ConfigError, MissingPart) as error:
        return Check(NAME, Outcome.FAIL, str(error), "give --nats-creds and --nats-tls-* as the server wants them")
    return Check(NAME, Outcome.OK, f"{place.url} admits these credentials")


async def _connect(place: NatsPlace, limit_s: float) -> None:
    connection = await Connection.open(place.address(), deadline_s=limit_s, retry_s=limit_s, on_wait=lambda _: None)
    await connection.close()
