"""Group commit: as `EventLog.append` for each caller, with fewer batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from schemas.errors import Conflict, EventTooLarge, LogUnavailable, SchemaError
from schemas.subjects import about, every_event
from storage import group_commit
from storage.group_commit import GroupCommit
from storage.log import Append, EventLog, Fence, once
from storage.memory_log import MemoryLog
from tests.storage.log.appends import chunk, everything, failure, reward
from tests.storage.waiting import until


class SlowLog(MemoryLog):
    """Takes until it may end, and remembers how much came at once."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.batches: list[int] = []
        self.broken: Exception | None = None
        self.under_way, self.may_end = asyncio.Event(), asyncio.Event()
        self.may_end.set()

    async def append(self, appends: Sequence[Append]) -> list[int]:
        self.under_way.set()
        await self.may_end.wait()
        if self.broken is not None:
            raise self.broken
        self.batches.append(len(appends))
        return await super().append(appends)


async def test_many_callers_share_a_batch_and_keep_together(log: EventLog) -> None:
    async with GroupCommit(log) as commit:
        calls = [[reward(log, f"{i}-{j}") for j in range(3)] for i in range(100)]
        positions = await asyncio.gather(*(commit.append(call) for call in calls))
    assert all(p == [p[0], p[0] + 1, p[0] + 2] for p in positions)
    stored = await everything(log)
    for call, where in zip(calls, positions, strict=True):
        assert [stored[p - 1].envelope for p in where] == [a.envelope for a in call]


async def test_what_comes_while_a_batch_is_under_way_makes_the_next() -> None:
    log = SlowLog()
    async with GroupCommit(log) as commit:
        log.may_end.clear()
        calls = [commit.submit([reward(log, f"s{i}")]) for i in range(50)]
        await until(log.under_way.is_set)
        calls += [commit.submit([reward(log, f"t{i}")]) for i in range(30)]
        log.may_end.set()
        await asyncio.gather(*calls)
    assert log.batches == [50, 30]


class Counting(SlowLog):
    """Counts what is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.most = 0, 0

    async def append(self, appends: Sequence[Append]) -> list[int]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().append(appends)
        finally:
            self.now -= 1


@pytest.mark.parametrize(("waiting", "at_once"), [(5, 2), (1, 1)])
async def test_a_second_batch_is_sent_where_much_waits(
    monkeypatch: pytest.MonkeyPatch, waiting: int, at_once: int
) -> None:
    log = Counting()
    size = len(chunk(log, "s", 0, tokens=2500).encoded())
    monkeypatch.setattr(group_commit, "MUCH_BYTES", 3 * size)
    async with GroupCommit(log, max_bytes=5 * size) as commit:
        log.may_end.clear()
        calls = [commit.submit([chunk(log, f"s{i}", 0, tokens=2500)]) for i in range(5 + waiting)]
        await until(log.under_way.is_set)
        for _ in range(10):
            await asyncio.sleep(0)
        assert log.now == at_once
        log.may_end.set()
        positions = await asyncio.gather(*calls)
    assert sorted(position for (position,) in positions) == list(range(1, 6 + waiting))
    assert log.most == at_once


async def test_who_writes_where_a_batch_under_way_does_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MUCH_BYTES", 1)
    log = Counting()
    async with GroupCommit(log) as commit:
        log.may_end.clear()
        first = commit.submit([reward(log, "a")])
        await until(log.under_way.is_set)
        same, fenced = failure(log, "b"), reward(log, "c")
        late = [
            commit.submit([Append(reward(log, "a").envelope)]),  # the same subject, with no fence
            commit.submit([Append(same.envelope, Fence(about(log.run, "reward", "a"), 0))]),
            commit.submit([fenced]),
        ]
        await until(lambda: log.now == 2)
        assert not any(call.done() for call in late)
        log.may_end.set()
        assert await first == [1]
        assert await late[2] == [2]
        assert await late[0] == [1], "it is the same event"
        with pytest.raises(Conflict):
            await late[1]
    assert log.batches[:2] == [1, 1]


async def test_batches_are_bounded() -> None:
    log = SlowLog()
    async with GroupCommit(log, at_most=10) as commit:
        await asyncio.gather(*(commit.append([reward(log, f"{i}-{j}") for j in range(4)]) for i in range(5)))
    assert log.batches == [8, 8, 4]
    log = SlowLog()
    async with GroupCommit(log, max_bytes=50_000) as commit:
        await asyncio.gather(*(commit.append([chunk(log, f"s{i}", 0, tokens=2500)]) for i in range(5)))
    assert log.batches == [2, 2, 1]


async def test_a_call_above_a_batch_s_bounds_is_a_batch_of_its_own() -> None:
    log = SlowLog()
    async with GroupCommit(log, at_most=2, max_bytes=10_000) as commit:
        calls = [[reward(log, f"{i}-{j}") for j in range(size)] for i, size in enumerate((1, 3, 1))]
        calls.append([chunk(log, "large", 0, tokens=2500)])
        await asyncio.wait_for(asyncio.gather(*map(commit.append, calls)), 60)
    assert log.batches == [1, 3, 1, 1]


async def test_a_batch_that_is_too_large_for_the_log_alone_is_tried_call_by_call() -> None:
    class Narrow(SlowLog):
        async def append(self, appends: Sequence[Append]) -> list[int]:
            if any(append.envelope.event.entity() == "large" for append in appends):
                raise EventTooLarge("more than this server takes")
            return await super().append(appends)

    log = Narrow()
    async with GroupCommit(log) as commit:
        calls = (commit.append([reward(log, name)]) for name in ("a", "large", "b"))
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    assert [isinstance(result, EventTooLarge) for result in results] == [False, True, False]


async def test_a_lost_fence_is_the_loss_of_its_caller_alone(log: EventLog) -> None:
    await log.append([chunk(log, "taken", 0)])
    fence = Fence(about(log.run, "rollout", "taken"), 0)
    async with GroupCommit(log) as commit:
        results = await asyncio.gather(
            commit.append([reward(log, "a"), reward(log, "b")]),
            commit.append([reward(log, "c"), chunk(log, "taken", 4, fence)]),
            commit.append([chunk(log, "taken", 8, Fence(fence.subject, 1))]),
            commit.append([chunk(log, "taken", 12, fence)]),
            return_exceptions=True,
        )
    assert [isinstance(r, Conflict) for r in results] == [False, True, False, True]
    assert {r.envelope.event.entity() for r in await everything(log)} == {"taken", "a", "b"}
    assert await log.position() == 4


async def test_the_others_of_a_refused_batch_stay_a_batch() -> None:
    log = SlowLog()
    await log.append([chunk(log, "taken", 0)])
    lost = chunk(log, "taken", 4, Fence(about(log.run, "rollout", "taken"), 0))
    right = reward(log, "right", fence=Fence(about(log.run, "rollout", "taken"), 1))
    async with GroupCommit(log) as commit:
        calls = [commit.append([reward(log, f"s{i}")]) for i in range(20)]
        results = await asyncio.gather(commit.append([right]), commit.append([lost]), *calls, return_exceptions=True)
    assert [isinstance(result, Conflict) for result in results[:2]] == [False, True]
    assert log.batches == [1, 22, 1, 21]


async def test_callers_of_one_batch_cannot_get_past_each_others_fences(log: EventLog) -> None:
    """Each claims the same place for another event: alone, the first would win and all others lose."""
    fence = Fence(about(log.run, "rollout", "a"), 0)
    async with GroupCommit(log) as commit:
        results = await asyncio.gather(
            commit.append([chunk(log, "a", 0, fence)]),
            commit.append([chunk(log, "a", 4, fence)]),
            commit.append([failure(log, "a", fence)]),
            commit.append([reward(log, "b", fence=Fence(every_event(log.run), 0))]),
            return_exceptions=True,
        )
    assert [isinstance(r, Conflict) for r in results] == [False, True, True, True]
    assert await log.position() == 1


async def test_the_same_event_from_two_callers_is_one(log: EventLog) -> None:
    async with GroupCommit(log) as commit:
        first, two = await asyncio.gather(commit.append([reward(log, "a")]), commit.append([reward(log, "a")]))
    assert first == two == [1]


async def test_too_large_an_event_fails_its_caller_alone(log: EventLog) -> None:
    async with GroupCommit(log) as commit:
        good, bad = await asyncio.gather(
            commit.append([reward(log, "a")]),
            commit.append([chunk(log, "b", 0, tokens=600_000)]),
            return_exceptions=True,
        )
    assert good == [1]
    assert isinstance(bad, EventTooLarge)


async def test_an_unavailable_log_fails_all_and_later_calls_go_on() -> None:
    log = SlowLog()
    async with GroupCommit(log) as commit:
        log.broken = LogUnavailable("away")
        lost = await asyncio.gather(*(commit.append([reward(log, f"s{i}")]) for i in range(3)), return_exceptions=True)
        assert all(isinstance(error, LogUnavailable) for error in lost)
        log.broken = None
        assert await commit.append([reward(log, "s0")]) == [1]


async def test_what_stops_the_writer_fails_all_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    log, faults = MemoryLog("stopped"), [SchemaError("one of them"), RuntimeError("unforeseen")]

    async def append(appends: Sequence[Append]) -> list[int]:
        raise faults.pop(0)

    monkeypatch.setattr(log, "append", append)
    with pytest.raises(RuntimeError, match="unforeseen"):
        async with GroupCommit(log) as commit:
            calls = [commit.submit([reward(log, f"s{i}")]) for i in range(3)]
    assert [type(call.exception()) for call in calls] == [LogUnavailable] * 3


async def test_closing_stores_what_was_asked_for() -> None:
    log = SlowLog()
    commit = GroupCommit(log)
    async with commit:
        tasks = [asyncio.create_task(commit.append([reward(log, f"s{i}")])) for i in range(5)]
        await asyncio.sleep(0)
    assert sorted([position for (position,) in await asyncio.gather(*tasks)]) == [1, 2, 3, 4, 5]
    with pytest.raises(LogUnavailable):
        await commit.append([reward(log, "late")])


async def test_a_caller_who_gave_up_before_the_batch_is_left_out() -> None:
    log = SlowLog()
    async with GroupCommit(log) as commit:
        log.may_end.clear()
        first = commit.submit([reward(log, "a")])
        await until(log.under_way.is_set)
        given_up = asyncio.create_task(commit.append([reward(log, "b")]))
        await asyncio.sleep(0)
        given_up.cancel()
        log.may_end.set()
        await first
        assert await commit.append([reward(log, "c")]) == [2]
    assert await log.position() == 2


async def test_closing_ends_if_all_that_waits_was_given_up() -> None:
    log = SlowLog()
    async with asyncio.timeout(5), GroupCommit(log) as commit:
        log.may_end.clear()
        commit.submit([reward(log, "a")])
        await until(log.under_way.is_set)
        commit.submit([reward(log, "b")]).cancel()
        asyncio.get_running_loop().call_later(0.01, log.may_end.set)  # while it closes
    assert await log.position() == 1


async def test_what_may_be_said_once_is_refused_the_second_time() -> None:
    log = MemoryLog("r")
    async with GroupCommit(log) as commit:
        assert await commit.append([once(chunk(log, "a", 0).envelope)]) == [1]
        with pytest.raises(Conflict):
            await commit.append([once(chunk(log, "a", 4).envelope)])
