"""Much is read in bulk, and whatever becomes of that, a reader sees every event once and in order."""

from __future__ import annotations

import asyncio

import pytest

from schemas.errors import LogUnavailable
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from storage.jetstream import bulk_read, read
from storage.jetstream.bulk_read import read_bulk
from storage.jetstream.log import JetStreamLog
from storage.jetstream.retry import Away
from storage.log import Recorded, append_all
from tests.state.fold_log import fold
from tests.storage.log.said import everything, reward

COUNT = 60


@pytest.fixture
async def filled(stream: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> JetStreamLog:
    monkeypatch.setattr(read, "FROM", 10)
    monkeypatch.setattr(bulk_read, "BATCH", 7)
    await append_all(stream, [reward(stream, f"s{number}") for number in range(COUNT)])
    return stream


async def _bulk(log: JetStreamLog, start: int, end: int) -> list[int]:
    return [found.position async for some in read_bulk(log._stream, start, end) for found in some]


async def _pages(log: JetStreamLog, monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    with monkeypatch.context() as patched:
        patched.setattr(read, "FROM", 1000)
        return await everything(log)


@pytest.mark.parametrize("page_bytes", [1 << 20, 1500], ids=["by number", "by bytes"])
async def test_all_of_it(filled: JetStreamLog, monkeypatch: pytest.MonkeyPatch, page_bytes: int) -> None:
    monkeypatch.setattr(bulk_read, "PAGE_BYTES", page_bytes)
    for start, end in ((1, COUNT), (1, 1), (8, 8), (30, 41)):
        assert await _bulk(filled, start, end) == list(range(start, end + 1))
    assert await everything(filled) == await _pages(filled, monkeypatch)


@pytest.mark.parametrize("bulk_from", [10, 1000], ids=["in bulk", "in pages"])
async def test_its_stretches_fold_to_the_same_state(
    filled: JetStreamLog, monkeypatch: pytest.MonkeyPatch, bulk_from: int
) -> None:
    monkeypatch.setattr(read, "FROM", bulk_from)
    state = RunState(run=filled.run)
    for recorded in await everything(filled):
        apply(state, recorded)
    found = [stretch async for stretch in filled.stretches(1, b"", 25)]
    assert [(stretch.first, stretch.last) for stretch in found] == [(1, 25), (26, 50), (51, COUNT)]
    assert await fold(filled) == state
    rest = [stretch async for stretch in filled.stretches(26, found[0].chain, 25)]
    assert [(stretch.first, stretch.chain) for stretch in rest] == [(s.first, s.chain) for s in found[1:]]


async def test_what_breaks_in_the_middle_goes_on_in_pages(
    filled: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, receive, came = await _pages(filled, monkeypatch), bulk_read._Bulk._receive, 0

    def loses_one(self: bulk_read._Bulk, *message: object) -> None:
        nonlocal came
        came += 1
        if came != 20:
            receive(self, *message)  # type: ignore[arg-type]

    monkeypatch.setattr(bulk_read._Bulk, "_receive", loses_one)
    with pytest.raises(Away, match="came where"):
        await _bulk(filled, 1, COUNT)
    came = 0
    assert await everything(filled) == wanted


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
    async with asyncio.timeout(60):  # the server is told, and not waited for
        while await _consumers(filled):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
