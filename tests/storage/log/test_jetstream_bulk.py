"""Much is read in bulk, and whatever becomes of that, a reader sees every event once and in order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from schemas.errors import LogUnavailable
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from storage.jetstream import pull, read
from storage.jetstream.fast_client import FastClient
from storage.jetstream.log import JetStreamLog
from storage.jetstream.pull import read_bulk
from storage.jetstream.retry import Away
from storage.log import Recorded, append_all
from tests.state.whole_log import fold
from tests.storage.log.appends import everything, reward

COUNT = 60


class Silent(FastClient):
    """A client without a connection."""

    async def _process_ping(self) -> None:
        pass


@pytest.fixture
async def filled(stream: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> JetStreamLog:
    monkeypatch.setattr(read, "BULK_FROM", 10)
    monkeypatch.setattr(pull, "BULK", 7)
    await append_all(stream, [reward(stream, f"s{number}") for number in range(COUNT)])
    return stream


async def _bulk(log: JetStreamLog, start: int, end: int) -> list[int]:
    return [recorded.position async for some in read_bulk(log._stream, start, end) for recorded in some]


async def _pages(log: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    with monkeypatch.context() as patched:
        patched.setattr(read, "BULK_FROM", 1000)
        return await everything(log)


@pytest.mark.parametrize("page_bytes", [1 << 20, 1500], ids=["by number", "by bytes"])
async def test_all_of_it(filled: JetStreamLog, monkeypatch: pytest.MonkeyPatch, page_bytes: int) -> None:
    monkeypatch.setattr(pull, "PAGE_BYTES", page_bytes)
    for start, end in ((1, COUNT), (1, 1), (8, 8), (30, 41)):
        assert await _bulk(filled, start, end) == list(range(start, end + 1))
    assert await everything(filled) == await _pages(filled, monkeypatch)


@pytest.mark.parametrize("bulk_from", [10, 1000], ids=["in bulk", "in pages"])
async def test_its_blocks_fold_to_the_same_state(
    filled: JetStreamLog, monkeypatch: pytest.MonkeyPatch, bulk_from: int
) -> None:
    monkeypatch.setattr(read, "BULK_FROM", bulk_from)
    state = RunState(run=filled.run)
    for recorded in await everything(filled):
        apply(state, recorded)
    blocks = [block async for block in filled.event_blocks(1, b"", 25)]
    assert [(block.first, block.last) for block in blocks] == [(1, 25), (26, 50), (51, COUNT)]
    assert await fold(filled) == state
    rest = [block async for block in filled.event_blocks(26, blocks[0].chain, 25)]
    assert [(block.first, block.chain) for block in rest] == [(s.first, s.chain) for s in blocks[1:]]


async def test_what_breaks_in_the_middle_goes_on_in_pages(
    filled: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_pages, receive, came = await _pages(filled, monkeypatch), pull._Bulk._receive, 0

    def loses_one(self: pull._Bulk, *message: object) -> None:
        nonlocal came
        came += 1
        if came != 20:
            receive(self, *message)  # type: ignore[arg-type]

    monkeypatch.setattr(pull._Bulk, "_receive", loses_one)
    monkeypatch.setattr(pull._Bulk, "_receive_row", None)
    with pytest.raises(Away, match="arrived instead"):
        await _bulk(filled, 1, COUNT)
    came = 0
    assert await everything(filled) == by_pages


def _sent(position: int, *, subject: bytes = b"slime.r.x.y.z", sid: int = 7, consumer: str = "c") -> bytes:
    head, data = f"NATS/1.0\r\nNats-Msg-Id: {position}\r\n\r\n".encode(), b"\r\nHMSG a 7 1 2\r\n" * (position % 3)
    reply = f"$JS.ACK.SLIME_r.{consumer}.1.{position}.{position}.5.0".encode()
    line = b"HMSG %b %d %b %d %d\r\n" % (subject, sid, reply, len(head), len(head) + len(data))
    return line + head + data + b"\r\n"


_STATUS = b"NATS/1.0 409 Batch Completed\r\n\r\n"


@pytest.mark.parametrize(
    "middle",
    [
        [_sent(4), _sent(5)],
        [_sent(5)],
        [_sent(3), _sent(4), _sent(5)],
        [_sent(4, sid=8), _sent(4), _sent(5)],
        [_sent(4, consumer="other"), _sent(5)],
        [_sent(4, subject=b"slime.r.x.y.\xff"), _sent(5, subject="slime.r.\u00e9".encode())],
        [_sent(4, subject=b"slime.r." + b"a" * 4000), _sent(5)],
        [b"PING\r\n", _sent(4), b"+OK\r\n", _sent(5)],
        [b"HMSG _INBOX.b.0 7 %d %d\r\n%b\r\n" % (len(_STATUS), len(_STATUS), _STATUS), _sent(4), _sent(5)],
    ],
    ids=["all", "a hole", "one twice", "another's", "another consumer", "no UTF-8", "long", "ping", "status"],
)
@pytest.mark.parametrize("missing", [0, 1, 60, 100])
async def test_messages_in_a_row_are_taken_as_each_by_itself(middle: list[bytes], missing: int) -> None:
    sent = b"".join([*map(_sent, (1, 2, 3)), *middle, *map(_sent, (6, 7))])[: -missing or None]
    states = []
    for in_rows, cut in ((True, 1 << 20), (True, 150), (False, 150), (False, 1 << 20)):
        client = Silent()
        bulk = pull._Bulk(SimpleNamespace(connection=SimpleNamespace(client=client), name="SLIME_r"), "c", 1, 9)  # type: ignore[arg-type]
        client.register("_INBOX.b", 7, bulk._receive, bulk._receive_row if in_rows else None)
        client.register("_INBOX.other", 8, lambda *_: None)
        for at in range(0, len(sent), cut):
            await client._ps.parse(sent[at : at + cut])
        states.append((bulk._received, bulk._next, bulk._failure, bytes(client._ps.buf)))
    assert len(states[0][0]) >= 3
    assert states == [states[0]] * 4


async def _consumers(log: JetStreamLog) -> list[str]:
    return (await log.connection.api(f"CONSUMER.NAMES.{log._stream.name}"))["consumers"] or []


async def test_a_consumer_that_is_gone(filled: JetStreamLog) -> None:
    seen = 0

    async def read() -> None:
        nonlocal seen
        async for some in read_bulk(filled._stream, 1, COUNT):
            seen += len(some)
            for name in await _consumers(filled):
                await filled.connection.api(f"CONSUMER.DELETE.{filled._stream.name}.{name}")

    with pytest.raises(Away, match="the consumer "):
        await read()
    assert 0 < seen < COUNT


async def test_a_closed_log(filled: JetStreamLog) -> None:
    await filled.close()
    with pytest.raises(LogUnavailable):
        await everything(filled)


async def test_nothing_is_left_behind(filled: JetStreamLog) -> None:
    await _bulk(filled, 1, COUNT)
    assert len(filled.connection.client.takers) == 1
    async with asyncio.timeout(60):  # the server gets the message, and nobody waits for it
        while await _consumers(filled):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
