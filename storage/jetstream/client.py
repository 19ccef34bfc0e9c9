"""`WireClient`: nats-py's client, which hands answers to questions over as they come off the wire.

A page of a log is a thousand messages. Each as an object of its own, through a queue and a task, costs ten times what
is in it; here an answer is two slices of the read buffer, and what is sent has its headers joined. Everything else goes
nats-py's way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.command import hpub_cmd
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

_VERSION = b"NATS/1.0"
_LONGEST_LINE = 4096


class Answer(NamedTuple):
    """One message that came back. head: its header block as it was sent, empty where it has none."""

    head: bytes
    data: bytes

    @property
    def is_status(self) -> bool:
        """Whether its headers begin with a status, as the last answer's do."""
        return self.head[len(_VERSION) : len(_VERSION) + 1] == b" "

    @property
    def status(self) -> str | None:
        """Three digits, where it is one."""
        return self.head[len(_VERSION) + 1 : len(_VERSION) + 4].decode() if self.is_status else None

    @property
    def description(self) -> str:
        """What a status says of itself."""
        return self.head.partition(b"\r\n")[0][len(_VERSION) + 5 :].decode()

    @property
    def headers(self) -> dict[str, str]:
        """By name."""
        return parse_header_lines(self.head.partition(b"\r\n")[2].rstrip(b"\r\n"))


def parse_header_lines(raw: bytes) -> dict[str, str]:
    """nats-py looks at headers letter by letter, which is most of the time that reading a log takes."""
    if not raw:
        return {}
    try:
        return dict([line.split(": ", 1) for line in bytes(raw).decode().rstrip("\r\n").split("\r\n")])
    except ValueError:  # of a form that neither the server nor this package writes
        return dict(Client._parse_header_lines(raw))


OnAnswer = Callable[[bytes, bytes, Answer], None]
"""Called with the subject that an answer came on, and the subject to reply to (empty: none)."""


class WireClient(Client):  # type: ignore[misc]
    """See the module. `hand_over` says which subscription's messages are answers, and whose."""

    _parse_header_lines = staticmethod(parse_header_lines)

    def __init__(self) -> None:
        super().__init__()
        self._ps = _WireParser(self)
        self.takers: dict[bytes, OnAnswer] = {}
        self.marks: dict[bytes, tuple[bytes, ...]] = {}

    def hand_over(self, inbox: str, sid: int, on_answer: OnAnswer) -> None:
        """From here on, all messages of that subscription to `inbox`, by whatever way they are read: so they stay in
        order.
        """
        key = str(sid).encode()
        self.takers[key], self.marks[key] = on_answer, (f"HMSG {inbox}.".encode(), b" %b $JS.ACK." % key)

    def keep(self, sid: int) -> None:
        """No longer: nobody takes them."""
        key = str(sid).encode()
        self.takers.pop(key, None)
        self.marks.pop(key, None)

    def drop(self) -> None:
        """Let go of what a server that does not read has not taken: asyncio would wait for it, before it closes."""
        if isinstance(self._transport, TcpTransport):
            self._transport._io_writer.transport.abort()

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting):
            self.drop()
        await super()._process_op_err(e)

    def has_answers(self, buf: bytearray) -> bool:
        """Whether there may be any in these bytes."""
        return any(buf.find(mark) >= 0 for marks in self.marks.values() for mark in marks)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, str] | None
    ) -> None:
        if headers is None:
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        # As nats-py does it, but without a regular expression for every name: ours have nothing that must not be sent.
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        command = hpub_cmd(subject, reply, b"%b\r\n%b\r\n" % (_VERSION, lines.encode()), payload)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        await self._send_command(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        taker = self.takers.get(str(sid).encode())
        if taker is not None:
            taker(subject, reply, Answer(headers or b"", data))
        else:
            await super()._process_msg(sid, subject, reply, data, headers)


class _WireParser(Parser):  # type: ignore[misc]
    """Takes answers out of the buffer itself, and gives nats-py whatever else there is."""

    buf: bytearray
    nc: WireClient

    async def parse(self, data: bytes = b"") -> Any:
        self.buf.extend(data)
        while self.buf:
            if self.state == AWAITING_CONTROL_LINE and self._take_answers():
                return
            if not self.nc.has_answers(self.buf):
                await super().parse()
                return
            if not await self._parse_one():
                return

    async def _parse_one(self) -> bool:
        """One line, or the body that belongs to the last: what comes after it may be answers. False: not whole yet."""
        buf = self.buf
        end = (buf.find(b"\r\n") if self.state == AWAITING_CONTROL_LINE else self.needed) + 2
        if end < 2 or len(buf) < end:
            return False
        rest = bytes(buf[end:])
        del buf[end:]
        await super().parse()
        if self.buf is not buf:
            return False  # the connection was lost meanwhile, and the rest with it
        buf.extend(rest)
        return True

    def _take_answers(self) -> bool:
        """Hand over the answers that the buffer begins with. True where it then begins with a part of one."""
        takers, place = self.nc.takers, 0
        if not self.buf.startswith(b"HMSG "):
            return False
        buf = bytes(self.buf)
        try:
            while buf.startswith(b"HMSG ", place):
                line = buf.find(b"\r\n", place, place + _LONGEST_LINE)
                if line < 0:
                    return True
                subject, sid, *reply, in_head, in_all = buf[place + 5 : line].split()
                take = takers.get(sid)
                if take is None:
                    return False
                head = line + 2
                body, end = head + int(in_head), head + int(in_all)
                if len(buf) < end + 2:
                    return True
                take(subject, reply[0] if reply else b"", Answer(buf[head:body], buf[body:end]))
                place = end + 2
            return False
        finally:
            del self.buf[:place]
