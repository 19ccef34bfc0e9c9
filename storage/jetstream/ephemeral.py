"""`ephemeral`: a consumer on the server for one reader, which lives no longer than that."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import nats.nuid

from schemas.errors import StorageError
from storage.jetstream.connection import Connection
from storage.log import Subjects


@contextlib.asynccontextmanager
async def ephemeral(
    connection: Connection, stream: str, position: int, subject: Subjects, idle_s: float
) -> AsyncIterator[str]:
    """The name of one that begins at `position`, while inside. idle_s: after so long without a pull the server ends it.

    Asked for once: a node that has just gone may have been chosen to hold it, and another name is held elsewhere.
    Raises Away, and StorageError where the server refuses.
    """
    name = nats.nuid.NUID().next().decode()
    config: dict[str, Any] = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": position,
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(idle_s * 1e9),
    }
    if subject is not None:
        config["filter_subjects"] = [subject] if isinstance(subject, str) else subject
    body = json.dumps({"stream_name": stream, "config": config}).encode()
    try:  # around the question too: who is cancelled while it is under way leaves a consumer that nobody knows
        await connection.request(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", body)
        yield name
    finally:
        with contextlib.suppress(StorageError):
            await connection.tell_api(f"CONSUMER.DELETE.{stream}.{name}")
