"""`Answer`: one message that came back from a NATS server, and what a client does to hand it to its asker."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from nats.aio.subscription import Subscription

VERSION = b"NATS/1.0"


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
