"""A call that may hang, and what is left of those who wait for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from schemas.errors import EngineError
from slime_events.app.launch.abandonable import ended_within, in_thread


def test_a_call_that_hangs_is_left_behind() -> None:
    release = threading.Event()

    def hang() -> None:
        release.wait()

    try:
        assert not asyncio.run(ended_within(0.0, hang))
    finally:
        release.set()


async def test_a_call_that_fails_says_why() -> None:
    def fail() -> None:
        raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        await ended_within(60.0, fail)


async def test_whoever_is_cancelled_waits_for_its_end_all_the_same() -> None:
    loop, begun, ended = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    release = threading.Event()

    def work() -> None:
        loop.call_soon_threadsafe(begun.set)
        release.wait()
        ended.set()

    waiting = asyncio.create_task(ended_within(60.0, work))
    await begun.wait()
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def test_a_call_that_ray_interrupts_ends_nobody_but_itself() -> None:
    """Ray raises SystemExit(0) in a call that is under way when it ends. Out of a task, that would end the loop."""

    def interrupted() -> None:
        raise SystemExit(0)

    with pytest.raises(EngineError, match="SystemExit"):
        await ended_within(60.0, interrupted)
    with pytest.raises(EngineError, match="SystemExit"):
        await in_thread(interrupted)
