"""Whether a launcher is there for a run, asked over NATS: the one on another machine, where no file lock reaches."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import nats.errors

from schemas.errors import RunIsOn
from schemas.subjects import inbox
from storage.jetstream_log import JetStreamLog

ANSWER_S = 15.0
"""Where nobody listens the server says so at once; only a launcher that hangs, or a very busy machine, takes this."""


@contextlib.asynccontextmanager
async def present(log: JetStreamLog) -> AsyncIterator[None]:
    """Answer whoever asks while inside."""
    here = f"process {os.getpid()} on {socket.gethostname()}".encode()

    async def answer(message: Any) -> None:
        await message.respond(here)

    subscription = await log.connection.client.subscribe(inbox(log.run, "launcher"), cb=answer)
    await log.connection.client.flush()  # from here on the server knows
    try:
        yield
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()


async def check_absent(log: JetStreamLog) -> None:
    """Raises RunIsOn where a launcher answers, or listens and is too slow to."""
    try:
        answer = await log.connection.client.request(inbox(log.run, "launcher"), b"", timeout=ANSWER_S)
    except nats.errors.NoRespondersError:
        return
    except (nats.errors.TimeoutError, TimeoutError):
        raise RunIsOn(f"a launcher of run {log.run} listens and does not answer: end that process first") from None
    raise RunIsOn(f"run {log.run} is on, launched by {answer.data.decode()}: wait for its end, or stop it")
