"""Ask over NATS whether a run has a launcher on any machine: a file lock works on one machine only."""

import contextlib
import os
import socket
from collections.abc import AsyncIterator

import nats.errors
from nats.aio.msg import Msg

from schemas.errors import RunIsOn
from schemas.subjects import inbox
from storage.jetstream.log import JetStreamLog

TRIES, ANSWER_S = 3, 5.0
"""Number of requests, and seconds to wait for each reply. Without a launcher, the server replies at once. A request
that arrives just as a launcher leaves gets no reply and is sent again. Only a launcher that hangs takes all this time.
"""


@contextlib.asynccontextmanager
async def present(log: JetStreamLog) -> AsyncIterator[None]:
    """Reply to requests of `check_absent` while inside."""
    here = f"process {os.getpid()} on {socket.gethostname()}".encode()

    async def answer(message: Msg) -> None:
        await message.respond(here)

    client, subject = log.connection.client, inbox(log.run, "launcher")
    subscription = await client.subscribe(subject, cb=answer)
    # This request's reply shows that the server has the subscription. A flush does not: its ping may arrive first. If
    # the server is away, the client subscribes when it is back.
    with contextlib.suppress(nats.errors.Error, TimeoutError):
        await client.request(subject, b"", timeout=ANSWER_S)
    try:
        yield
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()


async def check_absent(log: JetStreamLog) -> None:
    """Raise RunIsOn if a launcher replies, or if one listens and does not reply."""
    for _ in range(TRIES):
        try:
            answer = await log.connection.client.request(inbox(log.run, "launcher"), b"", timeout=ANSWER_S)
        except nats.errors.NoRespondersError:
            return
        except (nats.errors.TimeoutError, TimeoutError):
            continue
        raise RunIsOn(f"run {log.run} is running, launched by {answer.data.decode()}: wait until it ends, or stop it")
    raise RunIsOn(f"a launcher of run {log.run} is running and does not reply: end that process first")
