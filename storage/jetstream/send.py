"""`send`: publish messages to a stream, all stored or none. The result is a position, or `Refused`."""

import asyncio
from collections.abc import Mapping, Sequence

from storage.jetstream.connection import Connection
from storage.jetstream.error_codes import FENCE_FAILED, ErrorCode
from storage.jetstream.retry import ApiError

_AT_ONCE = 64
"""Messages after which other tasks may run: a large batch takes tens of milliseconds."""
_ID_TAKEN = ErrorCode.JSAtomicPublishContainsDuplicateMessageErr
_REFUSED = FENCE_FAILED | {ErrorCode.JSStreamWrongLastMsgIDErrF, _ID_TAKEN}
"""A fence failed, or an id is stored already."""


class Refused(Exception):
    """The server stored nothing: a fence failed, or (`id_taken`) a record has one of the message ids already."""

    def __init__(self, *, id_taken: bool) -> None:
        super().__init__()
        self.id_taken = id_taken


async def send(
    connection: Connection, messages: Sequence[tuple[str, bytes]], headers: Sequence[Mapping[str, str]]
) -> int:
    """Store messages and return the position of the first. headers: see `in_one_batch`. Raises Refused, Away."""
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
    if ack.get("duplicate"):  # its id belongs to a record somewhere in the stream
        raise Refused(id_taken=True)
    return int(ack["seq"]) - len(messages) + 1
