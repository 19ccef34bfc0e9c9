"""`count_open_batches`: measure how many open atomic batches a server allows on one stream. It does not report that."""

import asyncio
import secrets

from storage.jetstream.append import BATCH_COMMIT, BATCH_ID, BATCH_SEQUENCE
from storage.jetstream.connection import Connection
from storage.jetstream.retry import TooManyBatches

TRIED = 256
"""Batches to try; a server allows 50 by default."""


async def count_open_batches(connection: Connection, tried: int = TRIED) -> int:
    """Open `tried` batches on a temporary stream in memory, and return how many the server accepts.

    Raises ApiError, AccessDenied, LogUnavailable, and Away if the server stops answering.
    """
    name = f"slime-doctor-{secrets.token_hex(8)}"
    config = {"name": name, "subjects": [f"{name}.*"], "storage": "memory", "num_replicas": 1, "allow_atomic": True}
    await connection.api(f"STREAM.CREATE.{name}", config)
    try:
        for number in range(tried):
            headers = {BATCH_ID: str(number), BATCH_SEQUENCE: "1"}
            await connection.publish(f"{name}.first", b"", headers=headers)
        return sum(await asyncio.gather(*(_is_accepted(connection, name, number) for number in range(tried))))
    finally:
        await connection.api(f"STREAM.DELETE.{name}")


async def _is_accepted(connection: Connection, name: str, number: int) -> bool:
    """Commit an open batch. Return False if the server refused to open it."""
    headers = {BATCH_ID: str(number), BATCH_SEQUENCE: "2", BATCH_COMMIT: "1"}
    try:
        await connection.request(f"{name}.last", b"", headers=headers)
    except TooManyBatches:
        return False
    return True
