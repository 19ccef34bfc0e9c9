"""An event is stored once, of every back-end: an append that comes again finds it where it is."""

from __future__ import annotations

from schemas.subjects import about, of_type
from storage.log import EventLog, Fence, once
from tests.storage.log.appends import chunk, reward


async def test_the_same_event_is_stored_once(log: EventLog) -> None:
    await log.append([reward(log, "a"), reward(log, "b")])
    again = [reward(log, "b", value=2.0), reward(log, "c"), reward(log, "a"), reward(log, "c")]
    assert await log.append(again) == [2, 3, 1, 3]
    assert await log.position() == 3
    recorded = await log.last(of_type(log.run, "reward.assigned").replace("*", "b"))
    assert recorded is not None
    assert recorded.envelope.event.value == 1.0  # type: ignore[attr-defined]


async def test_the_same_event_is_known_again_behind_others_on_its_subject(log: EventLog) -> None:
    await log.append([chunk(log, "a", start) for start in range(5)])
    assert await log.append([chunk(log, "a", 2), chunk(log, "a", 5)]) == [3, 6]


async def test_a_retry_ignores_its_fence(log: EventLog) -> None:
    first = chunk(log, "a", 0, Fence(about(log.run, "rollout", "a"), 0))
    second = chunk(log, "a", 4, Fence(about(log.run, "rollout", "a"), 1))
    assert await log.append([first]) == [1]
    assert await log.append([second]) == [2]
    assert await log.append([first]) == [1]
    assert await log.append([first, second]) == [1, 2]


async def test_what_is_stored_already_is_dropped_and_the_rest_is_stored_together(log: EventLog) -> None:
    first = [once(reward(log, f"s{i}").envelope) for i in range(3)]
    await log.append(first)
    more = [once(reward(log, f"s{i}").envelope) for i in range(6)]
    assert await log.append(more) == [1, 2, 3, 4, 5, 6]


async def test_what_has_the_fence_of_its_neighbour_is_stored_once(log: EventLog) -> None:
    rollout = about(log.run, "rollout", "a")
    both = [chunk(log, "a", 0, Fence(rollout, 0)), reward(log, "a", fence=Fence(rollout, 0))]
    assert await log.append(both) == [1, 2]
    assert await log.append(both) == [1, 2]
    other = [chunk(log, "b", 0, Fence(about(log.run, "rollout", "b"), 0))]
    assert await log.append([*both, *other]) == [1, 2, 3]
    assert await log.append([reward(log, "a", fence=Fence(rollout, 1))]) == [2]
    assert await log.position() == 3
