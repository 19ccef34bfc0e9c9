"""`new_client`: the connection to a NATS server, which passes each answer to its asker.

`FastClient` (storage/jetstream/fast_client.py) reads answers out of nats-py's buffer. `PlainClient` does the same with
nats-py's public API alone, several times slower. It is used where nats-py has changed inside, or where the environment
variable SLIME_EVENTS_PLAIN_NATS is set (docs/vendored.md).
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from nats.aio.client import Client, __version__
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

PLAIN = "SLIME_EVENTS_PLAIN_NATS"
FAST_CLIENT = "storage/jetstream/fast_client.py"
KNOWN_INSIDE = "2.16.0"
"""The version of nats-py that the canaries ran on. Of any other the source is looked at first (20 ms)."""
VERSION = b"NATS/1.0"
_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """One message that came back. head: its header block as it was sent, empty where it has none."""

    head: bytes
    data: bytes

    @property
    def is_status(self) -> bool:
        """Whether its headers begin with a status, as the last answer's do."""
        return self.head[len(VERSION) : len(VERSION) + 1] == b" "

    @property
    def status(self) -> str | None:
        """Three digits, or None for a message that is no status."""
        return self.head[len(VERSION) + 1 : len(VERSION) + 4].decode() if self.is_status else None

    @property
    def description(self) -> str:
        """The text after the status code."""
        return self.head.partition(b"\r\n")[0][len(VERSION) + 5 :].decode()

    @property
    def headers(self) -> dict[str, str]:
        """By name."""
        return parse_header_lines(self.head.partition(b"\r\n")[2].rstrip(b"\r\n"))


def parse_header_lines(raw: bytes) -> dict[str, str]:
    """`Name: value` lines. The last of several lines with one name counts."""
    lines = (line.partition(":") for line in bytes(raw).decode(errors="replace").split("\r\n") if ":" in line)
    return {name: value.strip() for name, _, value in lines}


OnAnswer = Callable[[bytes, bytes, Answer], None]
"""Called with the subject that an answer came on, and the subject to reply to (empty: none)."""


class AnswerClient(Protocol):
    """What `Connection` needs beside nats-py's public methods."""

    async def receive(self, inbox: str, on_answer: OnAnswer) -> Subscription:
        """Subscribe to `<inbox>.*`: `on_answer` is called with each message there, in order."""

    async def end(self, subscription: Subscription) -> None:
        """Unsubscribe."""

    def drop(self) -> None:
        """Discard what a server that does not read has not taken, so that closing does not wait for it."""


class PlainClient(Client, AnswerClient):  # type: ignore[misc]
    """nats-py's client, used through its public API alone."""

    async def receive(self, inbox: str, on_answer: OnAnswer) -> Subscription:
        async def deliver(message: Msg) -> None:
            on_answer(message.subject.encode(), message.reply.encode(), _answer_of(message))

        # No limits: the asker bounds how many may come.
        return await self.subscribe(f"{inbox}.*", cb=deliver, pending_msgs_limit=0, pending_bytes_limit=0)

    async def end(self, subscription: Subscription) -> None:
        await subscription.unsubscribe()

    def drop(self) -> None:
        """Nothing: nats-py has no public way. `Connection.close` stops waiting after its deadline."""


def _answer_of(message: Msg) -> Answer:
    """With the header block as the server sent it; nats-py shows a status as the headers `Status`, `Description`."""
    headers = dict(message.headers or {})
    if not headers:
        return Answer(b"", message.data)
    first = VERSION.decode()
    if "Status" in headers and not message.data:
        first = f"{first} {headers.pop('Status')} {headers.pop('Description', '')}".rstrip()
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return Answer("\r\n".join([*lines, "", ""]).encode(), message.data)


def new_client() -> Client:
    """A `FastClient`, or a `PlainClient` where that is forced or the fast one cannot work. Not yet connected."""
    if os.environ.get(PLAIN) or _changed_inside():
        return PlainClient()
    from storage.jetstream.fast_client import FastClient

    return FastClient()


@functools.cache
def _changed_inside() -> bool:
    if __version__ == KNOWN_INSIDE:
        return False
    from storage.reaches import missing

    absent = missing(FAST_CLIENT)
    if absent:
        _log.warning("nats-py has no %s: the log is read and written through its public API, slower", absent[0])
    return bool(absent)
