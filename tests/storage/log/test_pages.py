"""No look-up in a log ends with a page of its back-end. One part of `test_log_contract.py`, which is long enough."""

from __future__ import annotations

import asyncio

from schemas.subjects import of_type
from storage.follow import Follower
from storage.log import Append, EventLog, append_all
from tests import made
from tests.storage.log.appends import chunk, envelope_of, everything


async def test_no_look_up_ends_with_a_page(log: EventLog) -> None:
    """JetStream gives 1,000 messages in one answer, and the last ones of 1,024 subjects."""
    names = [f"s{number}" for number in range(2500)]
    written = [chunk(log, name, start) for start in (0, 4) for name in names]
    await append_all(log, written)
    subjects = [append.envelope.subject for append in written[: len(names)]]
    last = await log.last_of_each(subjects)
    assert [last[subject].position for subject in subjects] == list(range(2501, 5001))
    chunks = of_type(log.run, "rollout.progressed")
    assert sorted(await log.subjects(chunks)) == sorted(subjects)
    assert [recorded.position for recorded in await everything(log, 2, chunks)] == list(range(2, 5001))
    newest = await log.last(chunks)
    assert newest is not None
    assert newest.position == 5000
    async with asyncio.timeout(60), Follower(log, subject=chunks) as follower:
        events = await follower.next(wait_s=60.0)
        while not follower.caught_up:
            events += await follower.next(wait_s=60.0)
    assert [recorded.position for recorded in events] == list(range(1, 5001))


async def test_what_is_large_is_looked_up_too(log: EventLog) -> None:
    """A page ends at 16 MB as well."""
    written = [_large(log, f"s{number}", 3 << 20) for number in range(8)]
    await append_all(log, written)
    last = await log.last_of_each([append.envelope.subject for append in written])
    assert [recorded.position for recorded in last.values()] == list(range(1, 9))
    assert len(await everything(log, 1, of_type(log.run, "reward.assigned"))) == 8


def _large(log: EventLog, sample: str, size: int) -> Append:
    event = made.assigned(sample, group="g", grader="test", grader_digest="d" * size)
    return Append(envelope_of(log, event))
