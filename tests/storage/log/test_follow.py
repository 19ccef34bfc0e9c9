"""Followers: the log as it grows, whether at once or now and then."""

from __future__ import annotations

import asyncio

import pytest

from schemas.subjects import of_type
from storage.follow import Follower
from storage.log import EventLog
from tests.storage.log.said import chunk, reward


@pytest.mark.parametrize("every_s", [None, 0.01], ids=["at once", "now and then"])
@pytest.mark.parametrize("filtered", [False, True])
async def test_a_follower_hands_over_each_event_once(log: EventLog, every_s: float | None, filtered: bool) -> None:
    subject = of_type(log.run, "reward.assigned") if filtered else None
    seen: list[str] = []
    await log.append([reward(log, "a"), chunk(log, "x", 0), reward(log, "b")])
    async with asyncio.timeout(20), Follower(log, subject=subject, every_s=every_s) as follower:
        while not follower.caught_up:
            seen += [recorded.envelope.event.entity() for recorded in await follower.next(wait_s=1.0)]
        for start, sample in enumerate("cde", 4):
            await log.append([reward(log, sample), chunk(log, "x", start)])
            await asyncio.sleep(0.02)
        while "e" not in seen or (not filtered and seen.count("x") < 4):
            seen += [recorded.envelope.event.entity() for recorded in await follower.next(wait_s=1.0)]
        assert await follower.next(wait_s=0.05) == []
    assert [name for name in seen if name != "x"] == list("abcde")
    assert seen.count("x") == (0 if filtered else 4)
