"""Test the contract of event logs (`storage/log.py`) with every back-end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from schemas.errors import Conflict, EventTooLarge, LogUnavailable
from schemas.rewards import RewardFailed, RewardFailureKind
from schemas.subjects import about, every_event, everything_about, of_type
from storage.log import MAX_BATCH, Append, Consumer, Delivery, EventLog, Fence, append_all, once
from storage.memory_log import MemoryLog
from tests.storage.log.appends import chunk, envelope_of, everything, failure, reward
from tests.storage.log.conftest import Open
from tests.storage.waiting import done_up_to, taken


async def test_positions_are_given_in_order_without_holes(log: EventLog) -> None:
    assert await log.position() == 0
    assert await log.append([reward(log, "a")]) == [1]
    assert await log.append([reward(log, "b"), reward(log, "c"), chunk(log, "b", 0)]) == [2, 3, 4]
    assert await log.position() == 4
    stored = await everything(log)
    assert [r.position for r in stored] == [1, 2, 3, 4]
    assert [r.envelope.event.entity() for r in stored] == ["a", "b", "c", "b"]
    assert stored[3].subject == f"slime.{log.run}.rollout.progressed.b"


async def test_nothing_is_stored_for_no_events(log: EventLog) -> None:
    assert await log.append([]) == []
    assert await log.position() == 0


async def test_an_event_is_stored_as_it_was(log: EventLog) -> None:
    append = chunk(log, "a", 7)
    await log.append([append])
    assert (await everything(log))[0].envelope == append.envelope


async def test_an_exact_fence_holds(log: EventLog) -> None:
    assert await log.append([once(reward(log, "a").envelope)]) == [1]
    fence = Fence(chunk(log, "b", 0).envelope.subject, 0)
    assert await log.append([chunk(log, "b", 0, fence)]) == [2]
    with pytest.raises(Conflict) as caught:
        await log.append([chunk(log, "b", 4, fence)])
    assert (caught.value.subject, caught.value.expected, caught.value.actual) == (fence.subject, 0, 2)
    assert await log.position() == 2


async def test_a_wildcard_fence_is_over_every_verb_of_one_entity(log: EventLog) -> None:
    rollout = about(log.run, "rollout", "a")
    await log.append([chunk(log, "a", 0), chunk(log, "b", 0)])
    assert await log.append([failure(log, "a", Fence(rollout, 1))]) == [3]
    with pytest.raises(Conflict) as caught:
        await log.append([chunk(log, "a", 4, Fence(rollout, 1))])
    assert (caught.value.expected, caught.value.actual) == (1, 3)
    assert await log.append([chunk(log, "a", 4, Fence(rollout, 3))]) == [4]


async def test_a_fence_over_every_noun_of_one_entity(log: EventLog) -> None:
    """Fence a rollout with turns: its turns, chunks, end and reward exclude each other."""
    all_of = everything_about(log.run, "a")
    await log.append([chunk(log, "a", 0), reward(log, "b")])
    together = [
        failure(log, "c", Fence(all_of, 1)),
        chunk(log, "a", 4, Fence(all_of, 1)),
        once(reward(log, "a").envelope),
    ]
    assert await log.append(together) == [3, 4, 5]
    with pytest.raises(Conflict) as caught:
        await log.append([chunk(log, "a", 8, Fence(all_of, 4))])
    assert (caught.value.expected, caught.value.actual) == (4, 5)
    assert await log.append([chunk(log, "a", 8, Fence(all_of, 5))]) == [6]


async def test_a_fence_may_be_over_another_entity(log: EventLog) -> None:
    await log.append([chunk(log, "a", 0)])
    other = about(log.run, "rollout", "a")
    assert await log.append([reward(log, "x", fence=Fence(other, 1))]) == [2]
    with pytest.raises(Conflict):
        await log.append([reward(log, "y", fence=Fence(other, 0))])


async def test_a_fence_over_the_whole_log(log: EventLog) -> None:
    await log.append([chunk(log, "a", 0), chunk(log, "b", 0)])
    whole = every_event(log.run)
    with pytest.raises(Conflict) as caught:
        await log.append([reward(log, "x", fence=Fence(whole, 1))])
    assert caught.value.actual == 2
    assert await log.append([reward(log, "x", fence=Fence(whole, 2)), reward(log, "y")]) == [3, 4]


async def test_fences_of_one_call_are_judged_before_it(log: EventLog) -> None:
    rollout = about(log.run, "rollout", "a")
    together = [chunk(log, "a", start, Fence(rollout, 0)) for start in range(3)] + [
        failure(log, "a", Fence(rollout, 0))
    ]
    assert await log.append(together) == [1, 2, 3, 4]


@pytest.mark.parametrize("positions", [(0, 1), (1, 0)])
async def test_fences_that_contradict_each_other_store_nothing(log: EventLog, positions: tuple[int, int]) -> None:
    for filter_ in (about(log.run, "rollout", "a"), every_event(log.run)):
        with pytest.raises(Conflict):
            await log.append([chunk(log, "a", 4 * p, Fence(filter_, p)) for p in positions])
    assert await log.position() == 0


async def test_a_conflict_in_the_middle_stores_nothing(log: EventLog) -> None:
    await log.append([chunk(log, "taken", 0)])
    lost = chunk(log, "taken", 4, Fence(about(log.run, "rollout", "taken"), 0))
    with pytest.raises(Conflict):
        await log.append([reward(log, "a"), chunk(log, "b", 0), lost, reward(log, "c")])
    assert await log.position() == 1
    assert await log.append([reward(log, "a")]) == [2]


@pytest.mark.parametrize("fenced", [True, False])
async def test_of_racing_writers_one_wins_each_time(opened: Open, fenced: bool) -> None:
    """Two writers, the same places, other contents. Without a fence both are the same event: nobody loses."""
    writers = [await opened() for _ in range(2)]

    async def write(number: int) -> list[bool]:
        log, won = writers[number], []
        for i in range(40):
            fence = Fence(about(log.run, "reward", f"s{i}"), 0) if fenced else None
            # another id than the other writer's, where it is fenced
            event = reward(log, f"s{i}", fence=fence) if number or not fenced else _failed(log, f"s{i}", fence)
            try:
                await log.append([event])
                won.append(True)
            except Conflict:
                won.append(False)
            await asyncio.sleep(0)
        return won

    first, two = await asyncio.gather(write(0), write(1))
    assert all(a != b if fenced else a and b for a, b in zip(first, two, strict=True))
    assert await writers[0].position() == 40


def _failed(log: EventLog, sample: str, fence: Fence | None) -> Append:
    event = RewardFailed(
        sample=sample, group="g", kind=RewardFailureKind.NONE, message="none", grader="test", grader_digest="d"
    )
    return Append(envelope_of(log, event), fence)


async def test_writers_without_fences_share_a_subject(opened: Open) -> None:
    writers = [await opened() for _ in range(3)]
    starts = [[chunk(log, "a", i + 100 * n) for i in range(20)] for n, log in enumerate(writers)]
    await asyncio.gather(
        *(_one_by_one(log, appends) for log, appends in zip(writers, starts, strict=True)),
    )
    stored = await everything(writers[0])
    assert len({r.envelope.id for r in stored}) == len(stored) == 60


async def _one_by_one(log: EventLog, appends: list[Append]) -> None:
    for append in appends:
        await log.append([append])


async def test_too_much_is_refused_before_anything_is_stored(log: EventLog) -> None:
    with pytest.raises(EventTooLarge, match=r"reward\.assigned about a"):
        await log.append([reward(log, "b"), _huge(log, "a", 5 << 20)])
    with pytest.raises(EventTooLarge, match="append_all"):
        await log.append([reward(log, f"s{i}") for i in range(MAX_BATCH + 1)])
    with pytest.raises(EventTooLarge, match="append_all"):
        await log.append([_huge(log, f"s{i}", 3 << 20) for i in range(11)])
    assert await log.position() == 0


def _huge(log: EventLog, sample: str, size: int) -> Append:
    append = reward(log, sample)
    event = append.envelope.event
    big = type(event)(sample=sample, group="g", value=1.0, grader="test", grader_digest="d" * size)  # type: ignore[call-arg]
    return Append(envelope_of(log, big))


async def test_append_all_splits(log: EventLog) -> None:
    appends = [reward(log, f"s{i}") for i in range(2 * MAX_BATCH + 10)]
    assert await append_all(log, appends) == list(range(1, len(appends) + 1))
    assert await append_all(log, [_huge(log, f"h{i}", 3 << 20) for i in range(11)]) == [2011 + i for i in range(11)]


async def test_reading_from_a_position_with_a_filter(log: EventLog) -> None:
    for i in range(10):
        await log.append([reward(log, f"s{i}"), chunk(log, f"s{i}", 0)])
    assert [r.position for r in await everything(log, 18)] == [18, 19, 20]
    assert [r.position for r in await everything(log, 15, of_type(log.run, "reward.assigned"))] == [15, 17, 19]
    assert [r.position for r in await everything(log, 1, about(log.run, "rollout", "s3"))] == [8]
    assert await everything(log, 1, of_type(log.run, "batch.sealed")) == []
    assert await everything(log, 21) == []


async def test_reading_what_several_filters_match(opened: Open) -> None:
    """Read past and future events in the order of the log."""
    log, other = await opened(), await opened()
    filters = (of_type(log.run, "reward.assigned"), about(log.run, "rollout", "s1"))
    for i in range(3):
        await log.append([reward(log, f"s{i}"), chunk(log, f"s{i}", 0), failure(log, f"s{i}")])
    assert [r.position for r in await everything(log, 1, filters)] == [1, 4, 5, 6, 7]
    assert [r.position for r in await everything(log, 5, filters)] == [5, 6, 7]
    assert await everything(log, 8, filters) == []
    following = log.read(5, filters, follow=True)
    async with asyncio.timeout(20):
        assert [(await anext(following)).position for _ in range(3)] == [5, 6, 7]
        await other.append([chunk(log, "s2", 4), chunk(log, "s1", 4), failure(log, "s3"), reward(log, "s3")])
        assert [(await anext(following)).position for _ in range(2)] == [11, 13]
    await following.aclose()  # type: ignore[attr-defined]


async def test_reading_more_than_a_page(log: EventLog) -> None:
    await append_all(log, [reward(log, f"s{i}") for i in range(2500)])
    await log.append([chunk(log, "x", 0)])
    assert [r.position for r in await everything(log)] == list(range(1, 2502))
    assert [r.position for r in await everything(log, 2, of_type(log.run, "rollout.progressed"))] == [2501]


async def test_the_last_event_of_a_filter(log: EventLog) -> None:
    assert await log.last(about(log.run, "rollout", "a")) is None
    await log.append([chunk(log, "a", 0), failure(log, "a"), chunk(log, "b", 0)])
    for filter_, position in ((about(log.run, "rollout", "a"), 2), (of_type(log.run, "rollout.progressed"), 3)):
        recorded = await log.last(filter_)
        assert recorded is not None
        assert recorded.position == position
    newest = await log.last(every_event(log.run))
    assert newest is not None
    assert newest.position == 3


async def test_the_last_event_of_many_subjects(log: EventLog) -> None:
    chunks = [chunk(log, f"s{number}", place) for place in (0, 4) for number in range(300)]
    await log.append(chunks)
    subjects = [append.envelope.subject for append in chunks[:300]]
    last = await log.last_of_each([*subjects, of_type(log.run, "rollout.failed")[:-1] + "nobody"])
    assert {subject: recorded.position for subject, recorded in last.items()} == {
        subject: 301 + number for number, subject in enumerate(subjects)
    }
    assert await log.last_of_each([]) == {}


async def test_the_subjects_under_a_filter_are_named_once(log: EventLog) -> None:
    chunks = [chunk(log, f"s{number}", place) for place in (0, 4) for number in range(3)]
    await log.append([*chunks, reward(log, "s0")])
    assert sorted(await log.subjects(of_type(log.run, "rollout.progressed"))) == [
        append.envelope.subject for append in chunks[:3]
    ]
    assert await log.subjects(of_type(log.run, "rollout.failed")) == []


async def test_a_follower_sees_all_that_comes(opened: Open) -> None:
    log, other = await opened(), await opened()
    await log.append([reward(log, "before"), chunk(log, "x", 0)])
    seen: list[int] = []

    async def follow() -> None:
        async for recorded in other.read(1, of_type(log.run, "reward.assigned"), follow=True):
            seen.append(recorded.position)
            if len(seen) == 101:
                return

    follower = asyncio.create_task(follow())
    for i in range(50):
        await log.append([reward(log, f"a{i}"), reward(log, f"b{i}"), chunk(log, f"a{i}", 0)])
    await asyncio.wait_for(follower, 60)
    assert seen == [1, *(2 + 3 * i + j for i in range(50) for j in (1, 2))]


async def test_a_follower_of_the_future_waits_for_it(log: EventLog) -> None:
    reader = log.read(3, follow=True)
    waiting = asyncio.ensure_future(anext(reader))
    await log.append([reward(log, "a"), reward(log, "b")])
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await log.append([reward(log, "c")])
    assert (await asyncio.wait_for(waiting, 20)).position == 3


async def test_competing_takers_share_the_queue(opened: Open) -> None:
    log, other = await opened(), await opened()
    await append_all(log, [reward(log, f"s{i}") for i in range(60)])
    await log.append([chunk(log, "not-in-the-queue", 0)])
    queue = of_type(log.run, "reward.assigned")
    takers = [await log.consume("grading", queue), await other.consume("grading", queue)]
    got: list[int] = []

    async def work(number: int) -> None:
        while len(got) < 60:
            deliveries = await takers[number].take(7, 0.1)
            assert len(deliveries) <= 7
            for delivery in deliveries:
                assert delivery.attempt == 1
                got.append(delivery.recorded.position)
                await delivery.done()
            await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(work(0), work(1))
    for taker in takers:
        assert await taker.take(1, 0.1) == []
        await taker.close()
    assert sorted(got) == list(range(1, 61))


async def test_a_queue_remembers_what_was_done(opened: Open) -> None:
    log = await opened()
    await log.append([reward(log, "a"), reward(log, "b")])
    taker = await log.consume("q", every_event(log.run))
    (first,) = await taken(taker, 1)
    await first.done()
    await taker.close()
    again = await (await opened()).consume("q", every_event(log.run))
    (second,) = await again.take(5, 20)
    assert second.recorded.position == 2
    await again.close()


async def test_a_queue_may_begin_where_another_is_done(opened: Open) -> None:
    """Deliver at once what the takers of the old queue hold, and what was done out of order."""
    log = await opened()
    for name in "abcd":
        await log.append([reward(log, name), chunk(log, name, 0)])
    subject = of_type(log.run, "reward.assigned")
    assert await log.done_up_to("old") == 0
    old = await log.consume("old", subject)
    for delivery in (await taken(old, 4))[::2]:
        await delivery.done()
    done = await done_up_to(log, "old")
    assert done in (1, 2), "chunks are not in the queue, so that where they lie they may count or not"
    takers = [await log.consume("new", subject, start=done + 1) for _ in range(2)]
    deliveries = await taken(takers[0], 2) + await takers[1].take(2, 20)
    assert [(d.recorded.position, d.attempt) for d in deliveries] == [(3, 1), (5, 1), (7, 1)]
    for taker in (old, *takers):
        await taker.close()


async def test_a_lease_may_be_changed(opened: Open) -> None:
    log = await opened()
    await log.append([reward(log, "a")])
    await (await log.consume("q", every_event(log.run), lease_s=60)).close()
    taker = await log.consume("q", every_event(log.run), lease_s=0.2)
    (first,), (second,) = await taker.take(1, 20), await taker.take(1, 20)
    assert first.attempt < second.attempt
    await taker.close()


async def test_take_returns_as_soon_as_there_is_one(log: EventLog) -> None:
    taker = await log.consume("q", every_event(log.run))
    assert await taker.take(5, 0.2) == []
    waiting = asyncio.create_task(taker.take(5, 60))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await log.append([reward(log, "a")])
    assert len(await asyncio.wait_for(waiting, 15)) == 1
    await taker.close()


LEASE_S = 0.3


async def test_a_lease_can_be_renewed(log: EventLog) -> None:
    """A pause of the machine may end a lease too, and then it is tried again."""
    await log.append([reward(log, "a")])
    first, two = [await log.consume("q", every_event(log.run), lease_s=LEASE_S) for _ in range(2)]
    async with asyncio.timeout(60):
        while not await _keeps_it(first, two):
            pass


async def _keeps_it(first: Consumer, two: Consumer) -> bool:
    """Whether the first taker has the event for two leases, although the second asks for it."""
    (held,) = await first.take(1, 20)
    for _ in range(6):
        if await two.take(1, LEASE_S / 3):
            return False
        await held.working()
    return True


async def test_what_is_not_done_when_its_lease_ends_comes_again(log: EventLog) -> None:
    """And whose lease is over has nothing to give back. A pause of the machine may end a lease too early for that."""
    await log.append([reward(log, "a")])
    first, two = [await log.consume("q", every_event(log.run), lease_s=LEASE_S) for _ in range(2)]
    async with asyncio.timeout(60):
        while not (last := await _stays_with_its_heir(first, two)):
            pass
    await last.done()
    await done_up_to(log, "q")
    assert await two.take(1, 1.5 * LEASE_S) == []


async def _stays_with_its_heir(first: Consumer, two: Consumer) -> Delivery | None:
    """A third delivery, where the second was left alone although the first was given back late."""
    (held,) = await first.take(1, 20)
    (again,) = await two.take(1, 20)
    await held.working()
    await held.release()
    if await first.take(1, LEASE_S / 3):
        return None
    (last,) = await first.take(1, 20)
    assert held.recorded == again.recorded == last.recorded
    assert held.attempt < again.attempt < last.attempt
    return last


async def test_a_released_event_comes_again_at_once(log: EventLog) -> None:
    await log.append([reward(log, "a")])
    taker = await log.consume("q", every_event(log.run), lease_s=60)
    (first,) = await taker.take(1, 20)
    assert await taker.take(1, 0.1) == []
    await first.release()
    (second,) = await taker.take(1, 20)
    assert second.attempt == 2
    await second.done()
    assert await taker.take(1, 0.1) == []


async def test_a_taker_that_was_cancelled_loses_nothing(log: EventLog) -> None:
    taker = await log.consume("q", every_event(log.run))
    waiting = asyncio.create_task(taker.take(1, 20.0))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    await log.append([reward(log, "a")])
    assert [d.recorded.position for d in await taker.take(1, 20)] == [1]


async def test_a_closed_log_says_so(log: EventLog) -> None:
    await log.append([reward(log, "a")])
    await log.close()
    with pytest.raises(LogUnavailable):
        await log.append([reward(log, "b")])
    with pytest.raises(LogUnavailable):
        await log.position()


async def test_a_restored_log_is_the_log_it_was(opened: Open) -> None:
    """Keep positions, ids and bytes of the other log, and its fences and its memory of event ids."""
    was = MemoryLog((await opened()).run)
    await was.append([chunk(was, f"s{i}", start) for i in range(3) for start in range(4)])
    log = await opened()
    await log.restore(was.records[:5])  # type: ignore[attr-defined]
    await log.restore(was.records[5:])  # type: ignore[attr-defined]
    await log.restore(was.records[5:])  # type: ignore[attr-defined]
    assert await everything(log) == was.records
    about_0 = about(log.run, "rollout", "s0")
    with pytest.raises(Conflict):
        await log.append([chunk(log, "s0", 9, Fence(about_0, 3))])
    assert await log.append([chunk(log, "s0", 1)]) == [2]
    assert await log.append([chunk(log, "s0", 9, Fence(about_0, 4))]) == [13]
    assert await (await opened()).append([chunk(log, "s2", 3), chunk(log, "s2", 4)]) == [12, 14]


async def test_nothing_is_restored_over_another_log_or_behind_a_gap(log: EventLog) -> None:
    was = MemoryLog(log.run)
    await was.append([chunk(was, "a", start) for start in range(3)])
    with pytest.raises(Conflict, match="ends at position 0"):
        await log.restore(was.records[1:])  # type: ignore[attr-defined]
    await log.append([reward(log, "x")])
    for records in (was.records, was.records[:1]):
        with pytest.raises(Conflict, match="Restore into an empty log"):
            await log.restore(records)  # type: ignore[attr-defined]
    assert await log.position() == 1
