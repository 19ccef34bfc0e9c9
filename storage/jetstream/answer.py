"""`Answer`: one message from a NATS server, and `AnswerClient`, the client that passes it to its receiver."""

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec
from nats.aio.subscription import Subscription

from schemas.doc import doc

VERSION = b"NATS/1.0"
ID = "Nats-Msg-Id"
_ID = f"\r\n{ID}: ".encode()
LONGEST_SUBJECT = 3900
"""Bytes of a subject that, with a reply inbox, still fits into one line of the protocol."""
_OWN = VERSION + _ID
_ID_LENGTH = 32
_OWN_END = len(_OWN) + _ID_LENGTH
"""End of the message id (32 digits) with which the header block of our appends begins."""
_FENCED = (b"Nats-Expected-Last-", b"Nats-Batch-Id: ")
_FENCES = tuple(b"\r\n" + name for name in _FENCED)
"""Beginnings of the line after the message id."""
_STORED = b"\r\nNats-Stream: "
"""Header that a stream adds to a stored message in an answer."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One message from a server."""

    head: Annotated[bytes, doc("Header block as it was sent; empty if it has none.")]
    data: bytes

    @property
    def is_status(self) -> bool:
        """Whether the headers begin with a status, as those of the last answer do.

        The writer of a stored message chooses its first line, so a stored message is recognised by the stream's header.
        """
        return self.head[len(VERSION) : len(VERSION) + 1] == b" " and _STORED not in self.head

    @property
    def status(self) -> str | None:
        """Three digits, or None if the message is not a status."""
        return self.head[len(VERSION) + 1 : len(VERSION) + 4].decode(errors="replace") if self.is_status else None

    @property
    def description(self) -> str:
        """Text after the status code."""
        return self.head.partition(b"\r\n")[0][len(VERSION) + 5 :].decode(errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        """Headers by name."""
        return parse_header_lines(self.head.partition(b"\r\n")[2].rstrip(b"\r\n"))


def message_ids(heads: Sequence[bytes]) -> list[str]:
    """Return the `message_id` of each; fast if all messages are our own appends."""
    begin, end, own = len(_OWN), _OWN_END, _OWN
    usual, fenced = _FENCES[0], end + len(_FENCES[0])
    for head in heads:
        if head[:begin] != own or (head[end:fenced] != usual and not head.startswith(_FENCES, end)):
            return list(map(message_id, heads))
    ids = b"".join([head[begin:end] for head in heads]).decode("ascii", "replace")  # one letter per byte
    return [ids[at : at + _ID_LENGTH] for at in range(0, len(ids), _ID_LENGTH)]


def message_id(head: bytes) -> str:
    """Return the `Nats-Msg-Id` of an append, or an empty text if the message is not an append.

    An append also has a fence or a place in a batch. The server checks those, so a copy of an append is refused or
    lacks them. If there are several ids, the first counts, as for the server.
    """
    begin = head.find(_ID) + len(_ID)
    if begin < len(_ID) or not any(b"\r\n" + name in head for name in _FENCED):
        return ""
    return head[begin : head.index(b"\r\n", begin)].decode(errors="replace")


def subject_text(subject: bytes) -> str:
    """Return a subject as text, with bytes that are not UTF-8 as `\\xff`, cut if it is too long to be sent."""
    if len(subject) < LONGEST_SUBJECT // 4:
        return subject.decode(errors="backslashreplace")
    text = subject.decode(errors="backslashreplace").encode()
    return text[:LONGEST_SUBJECT].decode(errors="ignore").rstrip(".")


def parse_header_lines(raw: bytes) -> dict[str, str]:
    """Parse `Name: value` lines. If a name occurs several times, the last line counts."""
    lines = (line.partition(":") for line in bytes(raw).decode(errors="replace").split("\r\n") if ":" in line)
    return {name: value.strip() for name, _, value in lines}


OnAnswer = Callable[[bytes, bytes, Answer], None]
"""Called with the subject of an answer, the subject for a reply (empty: none), and the answer."""

OnRow = Callable[[bytes, int, bytes], int]
"""Called with the read buffer, the offset of the next message, and the subscription whose messages it may take. Returns
the offset of the first message that it did not take.
"""


class AnswerClient(Protocol):
    """Methods that `Connection` needs in addition to nats-py's public methods."""

    async def receive(self, inbox: str, on_answer: OnAnswer, on_row: OnRow | None = None) -> Subscription:
        """Subscribe to `<inbox>.*` and call `on_answer` with each message in order.

        on_row: may take messages that follow one in the read buffer; a client may ignore it.
        """

    async def end(self, subscription: Subscription) -> None:
        """Unsubscribe."""

    def drop(self) -> None:
        """Discard messages that the server has not read, so that closing does not wait for them."""
