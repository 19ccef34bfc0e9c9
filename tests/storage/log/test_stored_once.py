"""An event is stored once, of every back-end: an append that comes again finds it where it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.subjects import about, of_type
from slime_events.core.telemetry.event_spans import span_of
from slime_events.core.telemetry.span_lines import span_lines
from slime_events.core.telemetry.telemetry import TracedLog
from storage.log import EventLog, Fence, once
from tests.storage.log.appends import chunk, everything, reward
from tests.telemetry.span_files import to_file


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


@pytest.mark.parametrize("fenced", [False, True])
async def test_an_append_knows_whether_another_one_stored_its_event(log: EventLog, fenced: bool) -> None:
    """An engine and a grader may both grade a sample. The log keeps the first grading."""
    fence = Fence(reward(log, "g-s0").envelope.subject, 0) if fenced else None
    first, again = reward(log, "g-s0", 1.0, fence), reward(log, "g-s0", 0.5, fence)
    assert await log.append([first]) == await log.append([again])
    assert (first.is_repeated, again.is_repeated) == (False, True)
    other, twice = reward(log, "g-s1"), reward(log, "g-s1", 0.5)
    mixed = [reward(log, "g-s0", 0.25), other, twice]
    await log.append(mixed)
    assert [append.is_repeated for append in mixed] == [True, False, True]


async def test_live_traces_have_one_span_for_each_event_that_the_log_keeps(log: EventLog, tmp_path: Path) -> None:
    telemetry = to_file(tmp_path / "spans.jsonl")
    traced = TracedLog(log, telemetry)
    for batch in (["a", "b"], ["b", "c"], ["c"], ["d", "d"]):
        await traced.append([reward(log, sample, value) for value, sample in enumerate(batch)])
    await asyncio.sleep(0)
    assert telemetry.shutdown(60)
    kept = [span_lines([span]) for recorded in await everything(log) if (span := span_of(recorded.envelope))]
    written = (tmp_path / "spans.jsonl").read_bytes().splitlines(keepends=True)[1:-1]
    assert sorted(written) == sorted(kept)
    assert len(kept) == 4
