"""`new_client`: the client for a NATS server, which passes each answer to its receiver.

`FastClient` (storage/jetstream/fast_client.py) reads answers from nats-py's buffer. `PlainClient` uses nats-py's public
API only, and is several times slower. It is used if the internals of nats-py have changed, or if the environment
variable SLIME_EVENTS_PLAIN_NATS is set (docs/vendored.md).
"""

import functools
import logging
import os

from nats.aio.client import Client, __version__
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from storage.jetstream.answer import VERSION, Answer, AnswerClient, OnAnswer, OnRow

PLAIN = "SLIME_EVENTS_PLAIN_NATS"
FAST_CLIENT = "storage/jetstream/fast_client.py"
KNOWN_INSIDE = "2.16.0"
"""Version of nats-py that the tests of its internals ran on. For any other version the source is checked (20 ms)."""
_log = logging.getLogger(__name__)


class PlainClient(Client, AnswerClient):  # type: ignore[misc]
    """Client that uses nats-py's public API only."""

    async def receive(self, inbox: str, on_answer: OnAnswer, on_row: OnRow | None = None) -> Subscription:
        async def deliver(message: Msg) -> None:
            on_answer(message.subject.encode(), message.reply.encode(), _answer_of(message))

        # No limits: the receiver limits the number of messages.
        return await self.subscribe(f"{inbox}.*", cb=deliver, pending_msgs_limit=0, pending_bytes_limit=0)

    async def end(self, subscription: Subscription) -> None:
        await subscription.unsubscribe()

    def drop(self) -> None:
        """Do nothing: nats-py has no public API for it. `Connection.close` stops waiting after its deadline."""


def _answer_of(message: Msg) -> Answer:
    """Return the answer with its original header block; nats-py turns a status into `Status` and `Description`."""
    headers = dict(message.headers or {})
    if not headers:
        return Answer(b"", message.data)
    first = VERSION.decode()
    if "Status" in headers and not message.data and not message.reply and "Nats-Stream" not in headers:
        first = f"{first} {headers.pop('Status')} {headers.pop('Description', '')}".rstrip()
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return Answer("\r\n".join([*lines, "", ""]).encode(errors="replace"), message.data)


def new_client() -> Client:
    """Return an unconnected `FastClient`, or a `PlainClient` if that is forced or the fast client cannot work."""
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
        _log.warning("nats-py has no %s: the log uses the slower public API", absent[0])
    return bool(absent)
