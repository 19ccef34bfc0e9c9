"""Reading what comes: a follower's consumer on the server, gaps in it, and what is left of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import pytest

from schemas.subjects import stream_name
from storage.jetstream.log import JetStreamLog
from storage.jetstream.pull import Pulled
from storage.jetstream.read import deliveries
from tests.storage.log.appends import reward
from tests.storage.waiting import until


class _Told:
    """A pull that has these delivery numbers, and loses its connection or its consumer when they are given out."""

    idle, gone, breaks = False, False, 0

    def __init__(self, numbers: list[int]) -> None:
        self.buffer = deque(Pulled(10 + n, n, 1, 0.0, "", b"", b"") for n in numbers)

    async def wait(self, _: float) -> bool:
        self.breaks = 1
        self.buffer.append(Pulled(99, 3, 1, 0.0, "", b"", b""))
        return True


@pytest.mark.parametrize(("numbers", "expected"), [([1, 2], [11, 12]), ([1, 2, 4, 5], [11, 12]), ([2], []), ([], [])])
async def test_a_follower_trusts_no_gap_and_no_broken_connection(numbers: list[int], expected: list[int]) -> None:
    pull: Any = _Told(numbers)
    assert [pulled.position async for pulled in deliveries(pull)] == expected


async def test_a_follower_goes_on_after_its_consumer_is_gone(stream: JetStreamLog) -> None:
    seen: list[int] = []

    async def follow() -> None:
        async for recorded in stream.read(follow=True):
            seen.append(recorded.position)

    follower = asyncio.create_task(follow())
    await stream.append([reward(stream, "a")])
    await until(lambda: len(seen) == 1)
    async with asyncio.timeout(60.0):
        while not (names := await _consumers(stream)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for name in names:
        await stream.connection.api(f"CONSUMER.DELETE.{stream_name(stream.run)}.{name}")
    await stream.append([reward(stream, "b")])
    await until(lambda: len(seen) == 2)
    assert seen == [1, 2]
    follower.cancel()
    await asyncio.gather(follower, return_exceptions=True)


async def _consumers(log: JetStreamLog) -> list[str]:
    return (await log.connection.api(f"CONSUMER.NAMES.{stream_name(log.run)}"))["consumers"] or []


async def _no_consumers(log: JetStreamLog) -> None:
    """Until the server has none."""
    async with asyncio.timeout(60.0):
        while await _consumers(log):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_follower_that_ends_before_it_has_begun_leaves_nothing_behind(
    stream: JetStreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, made_request = stream.connection.request, asyncio.Event()

    async def unheard(subject: str, payload: bytes) -> Any:
        await request(subject, payload)
        made_request.set()
        await asyncio.Event().wait()

    position = await stream.position()
    with monkeypatch.context() as patch:
        patch.setattr(stream.connection, "request", unheard)
        reading = asyncio.ensure_future(anext(stream.read(position + 1, follow=True)))
        await made_request.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await _no_consumers(stream)


async def test_many_followers_leave_nothing_behind(stream: JetStreamLog) -> None:
    await stream.append([reward(stream, "a")])
    readers = [stream.read(2, follow=True) for _ in range(5)]
    waiting = [asyncio.ensure_future(anext(reader)) for reader in readers]
    async with asyncio.timeout(60.0):
        while len(await _consumers(stream)) < len(readers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for reader in readers:
        await reader.aclose()  # type: ignore[attr-defined]
    await _no_consumers(stream)
