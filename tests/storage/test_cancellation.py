"""Cancellations that a wait swallows, as `asyncio.wait_for` of Python 3.11 does once in a while."""

from __future__ import annotations

import asyncio
import contextlib
import gc

import pytest

from storage.cancellation import check_cancelled, end_all, fail


async def losing(times: int) -> None:
    """Continue endlessly, and ignore the first `times` cancellations."""
    for _ in range(times):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)
    await asyncio.sleep(60.0)


async def test_a_task_that_lost_its_cancellation_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.cancellation.AGAIN_S", 0.01)

    async def broken() -> None:
        raise ValueError("its own affair")

    tasks = [asyncio.create_task(losing(times)) for times in (0, 2)] + [asyncio.create_task(broken())]
    await asyncio.sleep(0)
    await end_all(*tasks)
    assert [task.cancelled() for task in tasks] == [True, True, False]
    await end_all()


async def test_whoever_ends_others_and_is_cancelled_ends_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.cancellation.AGAIN_S", 0.01)
    inner = asyncio.create_task(losing(3))

    async def cleaning_up() -> None:
        try:
            await asyncio.sleep(60.0)
        finally:
            await end_all(inner)

    outer = asyncio.create_task(cleaning_up())
    await asyncio.sleep(0)
    await end_all(outer)
    assert outer.cancelled()
    assert inner.done()


async def test_a_lost_cancellation_is_found_where_it_is_asked_for() -> None:
    async def starting() -> None:
        await losing_once()
        check_cancelled()
        raise AssertionError("it continues")

    async def losing_once() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60.0)

    check_cancelled()  # nobody has cancelled this one
    task = asyncio.create_task(starting())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_is_told_to_who_waits_and_is_no_news_where_nobody_does() -> None:
    loop, news = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: news.append(context))
    waited, left, over = loop.create_future(), loop.create_future(), loop.create_future()
    over.cancel()
    for future in (waited, left, over):
        fail(future, ValueError("gone"))
    with pytest.raises(ValueError, match="gone"):
        await waited
    assert over.cancelled()
    del left, future
    gc.collect()
    assert news == []
