"""Read answers off the wire whole and in order, however the bytes were cut and whatever is between them."""

from __future__ import annotations

import random

import pytest

from storage.jetstream.answer import Answer, parse_header_lines
from storage.jetstream.fast_client import FastClient

INBOX = "_INBOX.abc"


class Seen(FastClient):
    """A client without a connection, which notes what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []
        self.register(INBOX, 1, lambda subject, reply, answer: self.seen.append((subject, reply, answer)))

    async def _process_ping(self) -> None:
        self.seen.append("ping")

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        if sid == 1:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            self.seen.append((sid, reply, headers, data))


def _hmsg(subject: str, sid: int, head: bytes, data: bytes, reply: str = "") -> bytes:
    words = (subject, sid, *([reply] if reply else []), len(head), len(head) + len(data))
    return f"HMSG {' '.join(map(str, words))}\r\n".encode() + head + data + b"\r\n"


def _stream() -> tuple[bytes, list[object]]:
    """Build what a server sends and the answers to expect from it. Some bodies look like protocol."""
    sent, expected = b"", list[object]()
    for number in range(12):
        head = f"NATS/1.0\r\nNats-Sequence: {number}\r\n\r\n".encode()
        body = b"\r\nHMSG " + INBOX.encode() + b".1 1 2 3\r\n" * (number % 3) + bytes([number]) * number
        sent += _hmsg(f"{INBOX}.{number}", 1, head, body)
        expected.append((f"{INBOX}.{number}".encode(), b"", Answer(head, body)))
        match number % 4:
            case 0:
                sent += b"PING\r\n"
                expected.append("ping")
            case 1:
                sent += _hmsg("other", 2, head, body, "reply.to")
                expected.append((2, b"reply.to", head, body))
            case 3:
                sent += _hmsg("slime.r.x.y.z", 1, head, body, "$JS.ACK.s.c.1.2.3.4.5")
                expected.append((b"slime.r.x.y.z", b"$JS.ACK.s.c.1.2.3.4.5", Answer(head, body)))
            case 2:
                sent += f"MSG {INBOX}.{number} 1 {len(body)}\r\n".encode() + body + b"\r\n"
                expected.append((f"{INBOX}.{number}".encode(), b"", Answer(b"", body)))
    return sent, expected


@pytest.mark.parametrize("seed", range(8))
async def test_however_it_is_cut(seed: int) -> None:
    sent, expected = _stream()
    client, draw = Seen(), random.Random(seed)
    while sent:
        cut = draw.randint(1, [3, 40, 4000][seed % 3])
        await client._ps.parse(sent[:cut])
        sent = sent[cut:]
    assert client.seen == expected


async def test_what_is_left_of_a_lost_connection_is_forgotten() -> None:
    sent, expected = _stream()
    client = Seen()
    await client._ps.parse(sent[:30])
    client._ps.reset()
    await client._ps.parse(sent)
    assert client.seen == expected


def test_an_answer_says_what_it_is() -> None:
    status = Answer(b"NATS/1.0 404 Message Not Found\r\nNats-Pending: 3\r\n\r\n", b"")
    assert (status.status, status.description) == ("404", "Message Not Found")
    assert status.headers == {"Nats-Pending": "3"}
    assert Answer(b"NATS/1.0 503\r\n\r\n", b"").status == "503"
    stored = Answer(b"NATS/1.0\r\nNats-Msg-Id: a: b\r\nNats-Sequence: 7\r\n\r\n", b"x")
    assert (stored.is_status, stored.status) == (False, None)
    assert stored.headers == {"Nats-Msg-Id": "a: b", "Nats-Sequence": "7"}
    assert Answer(b"", b"{}").headers == parse_header_lines(b"") == {}
