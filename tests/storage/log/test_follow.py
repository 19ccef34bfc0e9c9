"""Followers: the log as it grows, whether at once or now and then."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from schemas.errors import LogDamaged
from schemas.subjects import of_type
from storage.follow import Follower
from storage.log import EventLog, Subjects
from storage.memory_log import MemoryLog
from tests.storage.log.appends import chunk, reward


@pytest.mark.parametrize("every_s", [None, 0.01], ids=["at once", "now and then"])
@pytest.mark.parametrize("filters", [0, 1, 2])
async def test_a_follower_hands_over_each_event_once(log: EventLog, every_s: float | None, filters: int) -> None:
    filtered, rewards = filters > 0, of_type(log.run, "reward.assigned")
    subject = (None, rewards, (of_type(log.run, "batch.sealed"), rewards))[filters]
    seen: list[str] = []
    await log.append([reward(log, "a"), chunk(log, "x", 0), reward(log, "b")])
    async with asyncio.timeout(60), Follower(log, subject=subject, every_s=every_s) as follower:
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


async def test_a_follower_reads_ahead_no_further_than_it_may(log: EventLog) -> None:
    positions = await log.append([reward(log, name) for name in "abcdefg"])
    async with asyncio.timeout(60), Follower(log, read_ahead=3) as follower:
        blocks = [await follower.next(wait_s=20.0)]
        while not follower.caught_up:
            await asyncio.sleep(0.02)
            blocks.append(await follower.next(wait_s=20.0))
    assert [recorded.position for some in blocks for recorded in some] == positions
    assert max(map(len, blocks)) <= 3


@pytest.mark.parametrize("limit", [{"read_ahead": 3}, {"read_ahead_bytes": 300}])
async def test_few_events_wait_for_the_reader(limit: dict[str, int]) -> None:
    log = MemoryLog("r")
    await log.append([reward(log, name) for name in "abcdefg"])
    size = len(log.records[0].data)
    assert 100 < size < 300
    async with asyncio.timeout(60), Follower(log, **limit) as follower:
        await asyncio.sleep(0.05)
        assert len(await follower.next(wait_s=20.0)) == limit.get("read_ahead", -(-300 // size))


async def test_what_ended_the_reading_is_raised_after_what_came_before_it() -> None:
    class Torn(MemoryLog):
        async def read(self, start: int = 1, subject: Subjects = None, *, follow: bool = False) -> Any:
            async for recorded in super().read(start, subject):
                yield recorded
            raise LogDamaged("position 3 is missing")

    log = Torn("r")
    await log.append([reward(log, "a"), reward(log, "b")])
    async with asyncio.timeout(60), Follower(log) as follower:
        assert [recorded.position for recorded in await follower.next(wait_s=20.0)] == [1, 2]
        with pytest.raises(LogDamaged):
            await follower.next(wait_s=20.0)


async def test_it_has_caught_up_at_the_last_event_of_all_its_subjects_that_was_there() -> None:
    log = MemoryLog("r")
    await log.append([reward(log, "a"), chunk(log, "x", 0)])
    subjects = (of_type("r", "reward.assigned"), of_type("r", "rollout.progressed"))
    async with asyncio.timeout(60), Follower(log, subject=subjects, read_ahead=1) as follower:
        await log.append([reward(log, "b")])
        (first,) = await follower.next(wait_s=20.0)
        assert not follower.caught_up
        (second,) = await follower.next(wait_s=20.0)
        assert follower.caught_up
        (third,) = await follower.next(wait_s=20.0)
    assert [follower.is_history(follower_event) for follower_event in (first, second, third)] == [True, True, False]
