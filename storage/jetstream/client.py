"""`new_client`: the connection to a NATS server, which passes each answer to its asker.

`FastClient` (storage/jetstream/fast_client.py) reads answers out of nats-py's buffer. `PlainClient` does the same with
nats-py's public API alone, several times slower. It is used where nats-py has changed inside, or where the environment
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
"""The version of nats-py that the canaries ran on. Of any other the source is looked at first (20 ms)."""
_log = logging.getLogger(__name__)


class PlainClient(Client, AnswerClient):  # type: ignore[misc]
    """nats-py's client, used through its public API alone."""

    async def receive(self, inbox: str, on_answer: OnAnswer, on_row: OnRow | None = None) -> Subscription:
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
    if "Status" in headers and not message.data and not message.reply and "Nats-Stream" not in headers:
        first = f"{first} {headers.pop('Status')} {headers.pop('Description', '')}".rstrip()
    lines = [first, *(f"{name}: {value}" for name, value in headers.items())]
    return Answer("\r\n".join([*lines, "", ""]).encode(errors="replace"), message.data)


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
