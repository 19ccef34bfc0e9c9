"""`RawWriter`: a NATS client that sends what no client library would, with the credentials of its URL."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlparse

from tests.harness.strangers.kinds import Write


class RawWriter:
    """`async with RawWriter(url) as writer: await writer.publish(write)`; the position comes back."""

    def __init__(self, url: str, **connect: Any) -> None:
        """connect: fields of the CONNECT line, such as a user and a password that are not in the URL."""
        self._url, self._connect = urlparse(url.split(",")[0]), connect

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._url.hostname, self._url.port)
        await self._reader.readline()  # INFO
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
        if self._url.username:
            options |= {"user": unquote(self._url.username), "pass": unquote(self._url.password or "")}
        self._writer.write(f"CONNECT {json.dumps(options | self._connect)}\r\nSUB _INBOX.raw.* 1\r\n".encode())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def publish(self, write: Write) -> int:
        """Its position. Raises AssertionError where the server refuses it."""
        reply, size = b" _INBOX.raw.1 ", len(write.head) + len(write.data)
        if write.head:
            line = b"HPUB " + write.subject + reply + b"%d %d\r\n" % (len(write.head), size)
        else:
            line = b"PUB " + write.subject + reply + b"%d\r\n" % size
        self._writer.write(line + write.head + write.data + b"\r\n")
        await self._writer.drain()
        async with asyncio.timeout(30):
            while True:
                answer = await self._reader.readline()
                if answer.startswith(b"PING"):
                    self._writer.write(b"PONG\r\n")
                elif answer.startswith(b"MSG"):
                    ack = json.loads(await self._reader.readexactly(int(answer.split()[-1])) or "{}")
                    await self._reader.readline()
                    assert "seq" in ack, (write.subject, ack)  # else refused, or a part of a batch without its end
                    return int(ack["seq"])
                elif answer.startswith((b"-ERR", b"HMSG")) or not answer:
                    raise AssertionError((write.subject, answer))
