"""Checks of `doctor` for a user's own NATS server: who can connect, and how many appends it takes at once."""

import asyncio
import json
import socket
import ssl
from urllib.parse import urlsplit

from schemas.errors import ConfigError, MissingPart, StorageError
from slime_events.app.cli.checks import Check, Outcome
from storage.jetstream.address import NatsPlace
from storage.jetstream.connection import Connection
from storage.jetstream.open_batches import TRIED, count_open_batches
from storage.nats.folder import OPEN_BATCHES, OPEN_BATCHES_IN_ALL

NAME, BATCHES = "nats access", "nats batches"
_STRANGER = b'CONNECT {"verbose":false,"pedantic":false,"lang":"doctor","version":"0","protocol":1}\r\nPING\r\n'


def check_anybody(url: str, limit_s: float = 5.0) -> Check:
    """Check that one node refuses a client without credentials."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    where = f"{parts.hostname}:{parts.port or 4222}"
    try:
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 4222), limit_s) as connection:
            is_open = _lets_in(connection)
    except (OSError, ValueError):  # it hangs up, asks for a certificate, or is away, which another check reports
        is_open = False
    if is_open:
        mend = "`slime-events nats-config` prints accounts and permissions for it"
        return Check(NAME, Outcome.WARN, f"{where} admits any client, which may write into every run", mend)
    return Check(NAME, Outcome.OK, f"{where} refuses clients without credentials")


def _lets_in(connection: socket.socket) -> bool:
    greeting = connection.makefile("rb", buffering=0).readline(65536)
    if json.loads(greeting.partition(b" ")[2]).get("tls_required"):
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no secret is sent
        connection = context.wrap_socket(connection)
    connection.sendall(_STRANGER)
    words = (line.split()[0] for line in connection.makefile("rb") if line.strip())
    return next((word == b"PONG" for word in words if word in (b"PONG", b"-ERR")), False)


def check_credentials(place: NatsPlace, limit_s: float = 5.0) -> Check:
    """Check that the server admits the credentials, with their files and certificates."""
    try:
        asyncio.run(_connect(place, limit_s))
    except (StorageError, ConfigError, MissingPart) as error:
        return Check(NAME, Outcome.FAIL, str(error), "correct --nats-creds and --nats-tls-*")
    return Check(NAME, Outcome.OK, f"{place.url} admits these credentials")


async def _connect(place: NatsPlace, limit_s: float) -> None:
    connection = await Connection.open(place.address(), deadline_s=limit_s, retry_s=limit_s, on_wait=lambda _: None)
    await connection.close()


def check_batches(place: NatsPlace, limit_s: float = 10.0) -> Check:
    """Check how many atomic appends the server takes at once on one stream, with a stream of doctor's own."""
    try:
        count = asyncio.run(_count_batches(place, limit_s))
    except (StorageError, ConfigError, MissingPart, TimeoutError) as error:
        reason = str(error) or f"no answer within {limit_s:.0f} s"
        mend = "use credentials that may create a stream, or see docs/gateway.md for the setting"
        return Check(BATCHES, Outcome.WARN, f"unknown how many appends {place.url} takes at once: {reason}", mend)
    if count >= TRIED:
        return Check(BATCHES, Outcome.OK, f"{place.url} takes {TRIED} appends or more at once on a stream")
    limits = f"max_inflight_per_stream: {OPEN_BATCHES}, max_inflight_total: {OPEN_BATCHES_IN_ALL}"
    return Check(
        BATCHES,
        Outcome.WARN,
        f"{place.url} takes {count} appends at once on a stream: with more engines, some appends wait and are sent "
        "again (error 10176)",
        f"in its configuration: jetstream {{ limits {{ batch {{ {limits} }} }} }}",
    )


async def _count_batches(place: NatsPlace, limit_s: float) -> int:
    async with asyncio.timeout(limit_s):
        address = place.address()
        connection = await Connection.open(address, deadline_s=limit_s, retry_s=limit_s, on_wait=lambda _: None)
        try:
            return await count_open_batches(connection)
        finally:
            await connection.close()
