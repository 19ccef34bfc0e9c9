"""`send`: messages to a stream, all stored or none; what the server says of them is a position, or `Refused`."""

import asyncio
from collections.abc import Mapping, Sequence

from storage.jetstream.connection import Connection
from storage.jetstream.retry import ApiError

_AT_ONCE = 64
"""Messages, after which others of the process may go on: a large batch takes tens of milliseconds."""
_ID_TAKEN = 10201
_REFUSED = {10070, 10071, 10164, _ID_TAKEN}
"""A fence that does not hold (on one server, in a cluster), an id that is stored already."""


class Refused(Exception):
    """The server stored nothing, because of a fence or, `id_taken`, of an id that some record has already."""

    def __init__(self, *, id_taken: bool) -> None:
        super().__init__()
        self.id_taken = id_taken


async def send(
    connection: Connection, messages: Sequence[tuple[str, bytes]], headers: Sequence[Mapping[str, str]]
) -> int:
    """The position of the first. messages: subject and bytes of each; headers: as `in_one_batch` gives them.

    Raises Refused, Away.
    """
    for sent, ((subject, data), header) in enumerate(zip(messages[:-1], headers[:-1], strict=True), 1):
        await connection.publish(subject, data, headers=dict(header))
        if not sent % _AT_ONCE:
            await asyncio.sleep(0)
    subject, data = messages[-1]
    try:
        ack = await connection.request(subject, data, headers=dict(headers[-1]) or None)
    except ApiError as error:
        if error.code in _REFUSED:
            raise Refused(id_taken=error.code == _ID_TAKEN) from error
        raise
    if ack.get("duplicate"):  # of a record anywhere in the stream
        raise Refused(id_taken=True)
    return int(ack["seq"]) - len(messages) + 1
