"""Whether a run has a launcher on any machine, asked over NATS: no file lock reaches another machine."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import nats.errors

from schemas.errors import RunIsOn
from schemas.subjects import inbox
from storage.jetstream.log import JetStreamLog

TRIES, ANSWER_S = 3, 5.0
"""Where nobody listens the server answers so at once. A question that arrives just as a launcher leaves gets no answer
and is asked again; only a launcher that hangs takes all of this time."""


@contextlib.asynccontextmanager
async def present(log: JetStreamLog) -> AsyncIterator[None]:
    """Answer whoever asks while inside."""
    here = f"process {os.getpid()} on {socket.gethostname()}".encode()

    async def answer(message: Any) -> None:
        await message.respond(here)

    client, subject = log.connection.client, inbox(log.run, "launcher")
    subscription = await client.subscribe(subject, cb=answer)
    # Its answer shows that the server knows of the subscription. A flush does not: its ping may overtake. A server that
    # is away just now hears of it when it is back.
    with contextlib.suppress(nats.errors.Error, TimeoutError):
        await client.request(subject, b"", timeout=ANSWER_S)
    try:
        yield
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()


async def check_absent(log: JetStreamLog) -> None:
    """Raises RunIsOn where a launcher answers, or listens and does not."""
    for _ in range(TRIES):
        try:
            answer = await log.connection.client.request(inbox(log.run, "launcher"), b"", timeout=ANSWER_S)
        except nats.errors.NoRespondersError:
            return
        except (nats.errors.TimeoutError, TimeoutError):
            continue
        raise RunIsOn(f"run {log.run} is on, launched by {answer.data.decode()}: wait for its end, or stop it")
    raise RunIsOn(f"a launcher of run {log.run} listens and does not answer: end that process first")
