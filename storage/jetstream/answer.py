"""`Answer`: one message that came back from a NATS server, and what a client does to hand it to its asker."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from nats.aio.subscription import Subscription

VERSION = b"NATS/1.0"
ID = "Nats-Msg-Id"
_ID = f"\r\n{ID}: ".encode()
LONGEST_SUBJECT = 3900
"""Bytes: with an inbox to answer to it is as long as a line of the protocol may be."""
_OWN = VERSION + _ID
_ID_LENGTH = 32
_OWN_END = len(_OWN) + _ID_LENGTH
"""How a header block begins that an append of ours has: with its message id of 32 digits."""
_FENCED = (b"Nats-Expected-Last-", b"Nats-Batch-Id: ")
_FENCES = tuple(b"\r\n" + name for name in _FENCED)
"""How the line after it begins."""
_STORED = b"\r\nNats-Stream: "
"""A header that a stream adds to a message that it answers with."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """One message that came back. head: its header block as it was sent, empty where it has none."""

    head: bytes
    data: bytes

    @property
    def is_status(self) -> bool:
        """Whether its headers begin with a status, as the last answer's do. A stored message may look like that: its
        writer chose its first line.
        """
        return self.head[len(VERSION) : len(VERSION) + 1] == b" " and _STORED not in self.head

    @property
    def status(self) -> str | None:
        """Three digits, or None for a message that is no status."""
        return self.head[len(VERSION) + 1 : len(VERSION) + 4].decode(errors="replace") if self.is_status else None

    @property
    def description(self) -> str:
        """The text after the status code."""
        return self.head.partition(b"\r\n")[0][len(VERSION) + 5 :].decode(errors="replace")

    @property
    def headers(self) -> dict[str, str]:
        """By name."""
        return parse_header_lines(self.head.partition(b"\r\n")[2].rstrip(b"\r\n"))


def message_ids(heads: Sequence[bytes]) -> list[str]:
    """The `message_id` of each, for many: of ours all at once."""
    begin, end, own = len(_OWN), _OWN_END, _OWN
    usual, fenced = _FENCES[0], end + len(_FENCES[0])
    for head in heads:
        if head[:begin] != own or (head[end:fenced] != usual and not head.startswith(_FENCES, end)):
            return list(map(message_id, heads))
    ids = b"".join([head[begin:end] for head in heads]).decode("ascii", "replace")  # as many letters as bytes
    return [ids[at : at + _ID_LENGTH] for at in range(0, len(ids), _ID_LENGTH)]


def message_id(head: bytes) -> str:
    """The `Nats-Msg-Id` of an append; empty where the header block has none, or nothing that an append has beside it: a
    fence, or its place in a batch. The server compares those, so a message that is sent once more has lost them or is
    refused. Of several ids the first counts, as for the server.
    """
    begin = head.find(_ID) + len(_ID)
    if begin < len(_ID) or not any(b"\r\n" + name in head for name in _FENCED):
        return ""
    return head[begin : head.index(b"\r\n", begin)].decode(errors="replace")


def subject_text(subject: bytes) -> str:
    """A subject of whoever published: bytes that are no UTF-8 as `\\xff`, and what is too long to be sent again cut."""
    if len(subject) < LONGEST_SUBJECT // 4:
        return subject.decode(errors="backslashreplace")
    text = subject.decode(errors="backslashreplace").encode()
    return text[:LONGEST_SUBJECT].decode(errors="ignore").rstrip(".")


def parse_header_lines(raw: bytes) -> dict[str, str]:
    """`Name: value` lines. The last of several lines with one name counts."""
    lines = (line.partition(":") for line in bytes(raw).decode(errors="replace").split("\r\n") if ":" in line)
    return {name: value.strip() for name, _, value in lines}


OnAnswer = Callable[[bytes, bytes, Answer], None]
"""Called with the subject that an answer came on, and the subject to reply to (empty: none)."""

OnRow = Callable[[bytes, int, bytes], int]
"""Called with the read buffer, where the next message begins in it, and the subscription whose messages it may take.
Gives back where the first begins that it has not taken.
"""


class AnswerClient(Protocol):
    """What `Connection` needs beside nats-py's public methods."""

    async def receive(self, inbox: str, on_answer: OnAnswer, on_row: OnRow | None = None) -> Subscription:
        """Subscribe to `<inbox>.*`: `on_answer` is called with each message there, in order. on_row: takes those that
        follow one in the read buffer, as many as it likes; may be left uncalled.
        """

    async def end(self, subscription: Subscription) -> None:
        """Unsubscribe."""

    def drop(self) -> None:
        """Discard what a server that does not read has not taken, so that closing does not wait for it."""
