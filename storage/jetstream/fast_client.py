"""`FastClient`: nats-py's client with a faster parser of answers and a faster encoder of headers.

A page of a log has a thousand messages. nats-py passes each as an object through a queue and a task, which costs
several times the reading itself. Here an answer is two slices of the read buffer, and sent headers are joined without
checking each name. Everything else is nats-py's. storage/reaches.toml lists the internals of nats-py in use.
"""

from typing import Any

from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.command import hpub_cmd
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from storage.jetstream.answer import VERSION, Answer, AnswerClient, OnAnswer, OnRow
from storage.jetstream.chunks import Chunks


class FastClient(Client, AnswerClient):  # type: ignore[misc]
    """See the module. `register` sets the function that receives the messages of a subscription."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _AnswerParser(self)
        self.takers: dict[bytes, OnAnswer] = {}
        self.row_takers: dict[bytes, OnRow] = {}
        self.marks: dict[bytes, tuple[bytes, ...]] = {}

    async def receive(self, inbox: str, on_answer: OnAnswer, on_row: OnRow | None = None) -> Subscription:
        subscription = await self.subscribe(f"{inbox}.*")
        self.register(inbox, subscription._id, on_answer, on_row)
        return subscription

    def register(self, inbox: str, sid: int, on_answer: OnAnswer, on_row: OnRow | None = None) -> None:
        """Pass all messages of the subscription to `on_answer` from now on, whichever parser reads them."""
        key = str(sid).encode()
        self.takers[key], self.marks[key] = on_answer, (f"HMSG {inbox}.".encode(), b" %b $JS.ACK." % key)
        if on_row is not None:
            self.row_takers[key] = on_row

    async def end(self, subscription: Subscription) -> None:
        key = str(subscription._id).encode()
        try:
            await subscription.unsubscribe()
        finally:
            self.takers.pop(key, None)
            self.row_takers.pop(key, None)
            self.marks.pop(key, None)

    def drop(self) -> None:
        if isinstance(self._transport, TcpTransport):
            self._transport._io_writer.transport.abort()

    async def _read_loop(self) -> None:
        if isinstance(self._transport, TcpTransport):
            Chunks(self._transport)
        await super()._read_loop()

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting):
            self.drop()
        await super()._process_op_err(e)

    def has_answers(self, buf: bytearray) -> bool:
        """Return whether the bytes may contain an answer."""
        return any(buf.find(mark) >= 0 for marks in self.marks.values() for mark in marks)

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, str] | None
    ) -> None:
        if headers is None:
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        # As in nats-py, but without a regular expression per name: our names have no forbidden characters.
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        command = hpub_cmd(subject, reply, b"%b\r\n%b\r\n" % (VERSION, lines.encode()), payload)
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


class _AnswerParser(Parser):  # type: ignore[misc]
    """Parses answers itself, and leaves everything else to nats-py."""

    buf: bytearray
    nc: FastClient

    async def parse(self, data: bytes = b"") -> Any:
        if self.buf or self.state != AWAITING_CONTROL_LINE:
            self.buf.extend(data)
        elif self._take_answers(data):
            return
        while self.buf:
            if self.state == AWAITING_CONTROL_LINE and self._take_answers(bytes(self.buf)):
                return
            if not self.nc.has_answers(self.buf):
                await super().parse()
                return
            if not await self._parse_one():
                return

    async def _parse_one(self) -> bool:
        """Parse one line, or the body of the last line: answers may follow it. Return False if it is incomplete."""
        buf = self.buf
        end = (buf.find(b"\r\n") if self.state == AWAITING_CONTROL_LINE else self.needed) + 2
        if end < 2 or len(buf) < end:
            return False
        rest = bytes(buf[end:])
        del buf[end:]
        await super().parse()
        if self.buf is not buf:
            return False  # the connection was lost, and the rest with it
        buf.extend(rest)
        return True

    def _take_answers(self, buf: bytes) -> bool:
        """Pass on the answers at the beginning of `buf` (the parser's buffer, or bytes for an empty one), and leave the
        rest in the buffer. Return True if the rest begins with a part of an answer.
        """
        takers, row_takers, begin = self.nc.takers, self.nc.row_takers, 0
        try:
            while buf.startswith(b"HMSG ", begin):
                line = buf.find(b"\r\n", begin)
                if line < 0:
                    return True
                words = buf[begin + 5 : line].split(b" ")
                if len(words) == 5:
                    subject, sid, reply, in_head, in_all = words
                else:
                    (subject, sid, in_head, in_all), reply = words, b""
                take = takers.get(sid)
                if take is None:
                    return False
                head = line + 2
                body, end = head + int(in_head), head + int(in_all)
                if len(buf) < end + 2:
                    return True
                take(subject, reply, Answer(buf[head:body], buf[body:end]))
                begin = end + 2
                take_row = row_takers.get(sid)
                if take_row is not None:
                    begin = take_row(buf, begin, sid)
            return False
        finally:
            if self.buf:
                del self.buf[:begin]
            else:
                self.buf.extend(buf[begin:])
