"""Test records on a run's stream that are not events: no reader gets them, no writer fails by them, and all
are named.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from schemas.codec import encode
from schemas.errors import Conflict, UnknownEventType, UnknownSchemaVersion
from schemas.subjects import about, every_event, everything_about, of_type
from storage.jetstream import read, stream
from storage.jetstream.client import PlainClient
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog, Fence, ForeignRecord, Recorded, once
from storage.memory_log import MemoryLog
from storage.nats.server import NatsServer
from tests.harness.strangers.kinds import KINDS, Scene, Write, claim, head, make
from tests.harness.strangers.writer import RawWriter
from tests.storage.log.appends import chunk, everything, failure, reward
from tests.storage.log.conftest import Backend, Open
from tests.storage.log.forgetful import ForgetfulLog
from tests.storage.waiting import done_up_to, taken

Strange = Callable[[Write], Awaitable[int]]

NOT_AS_PLAIN = {"a subject that is not text"}
"""What nats-py itself cannot be given."""


def _kinds(backend: Backend) -> list[str]:
    return [kind for kind in KINDS if not (kind in NOT_AS_PLAIN and backend.client is PlainClient)]


@pytest.fixture
async def strange(log: EventLog, backend: Backend) -> AsyncIterator[Strange]:
    """Publishes past the log."""
    if isinstance(log, MemoryLog):

        async def publish(write: Write) -> int:
            return log.publish(write.subject.decode(errors="backslashreplace"), write.data, write.message_id)

        yield publish
        return
    assert backend.url is not None
    async with RawWriter(backend.url) as writer:
        if not isinstance(log, ForgetfulLog):
            yield writer.publish
            return

        async def publish_inside(write: Write) -> int:
            """Through the door that is open just now."""
            own = f"slime.{log.run}.".encode()
            await log._stream.refresh()
            door = log._stream.incoming(own.decode()).encode()
            return await writer.publish(dataclasses.replace(write, subject=door + write.subject.removeprefix(own)))

        yield publish_inside


async def records(log: EventLog, start: int = 1) -> list[Recorded | ForeignRecord]:
    return [record async for record in log.read_records(start)]


def scene(log: EventLog, sample: str = "a", seed: int = 1) -> Scene:
    return Scene(reward(log, sample).envelope, reward(log, "other").envelope, random.Random(seed))


async def test_every_kind_is_kept_and_named_and_nothing_else(opened: Open, strange: Strange, backend: Backend) -> None:
    log = await opened()
    await log.append([reward(log, "a"), reward(log, "b")])
    events, writes = [1, 2], dict[int, tuple[str, Write]]()
    for seed, kind in enumerate([*_kinds(backend), "nothing"]):
        write = make(kind, scene(log, seed=seed))
        writes[await strange(write)] = kind, write
        events += await log.append([reward(log, f"c{seed}")]) if seed % 3 else []
    for each in (log, await opened()):
        assert [r.position for r in await everything(each)] == events
        assert (await each.position(), await each.end()) == (events[-1], len(events) + len(writes))
        kept = await records(each)
        assert [r.position for r in kept] == list(range(1, len(events) + len(writes) + 1))
        for record in kept:
            if record.position in writes:
                kind, write = writes[record.position]
                assert isinstance(record, ForeignRecord), kind
                assert (record.reason, record.data) == (KINDS[kind][0], write.data), kind
                subject = write.subject.decode(errors="backslashreplace").removeprefix(f"slime.{log.run}.")
                assert record.subject.endswith(f".{subject}"), "one with wildcards is stored as it came in by a door"
                assert isinstance(log, ForgetfulLog) or record.subject == f"slime.{log.run}.{subject}"
            else:
                assert isinstance(record, Recorded)
        for filter_ in (about(log.run, "reward", "a"), of_type(log.run, "reward.assigned"), every_event(log.run)):
            assert all(isinstance(r, Recorded) for r in await everything(each, subject=filter_))
            last = await each.last(filter_)
            assert last is not None
            assert last.position == (1 if filter_.endswith(".a") else events[-1])
        named = reward(log, "a").envelope.subject
        assert {s: r.position for s, r in (await each.last_of_each([named, named + "x"])).items()} == {named: 1}


async def test_a_follower_and_a_taker_pass_them_by(opened: Open, strange: Strange, backend: Backend) -> None:
    log, writer = await opened(), await opened()
    taker = await log.consume("q", of_type(log.run, "reward.assigned"))
    positions, follower = [], aiter(log.read(follow=True))
    for number, kind in enumerate(_kinds(backend)):
        await strange(make(kind, scene(log, seed=number)))
        (position,) = await writer.append([reward(writer, f"s{number}")])
        recorded = await anext(follower)
        assert recorded.position == position
        positions.append(position)
    await strange(make("random bytes", scene(log, "s0")))
    deliveries = await taken(taker, len(positions))
    assert [delivery.recorded.position for delivery in deliveries] == positions
    for delivery in deliveries:
        await delivery.done()
    assert await taker.take(1, 0.3) == []
    await done_up_to(log, "q", positions[-1])
    await taker.close()


async def test_no_fence_is_lost_to_them(log: EventLog, strange: Strange) -> None:
    """Each fence names the last event that its writer knows, and there is a foreign record behind it."""
    await log.append([chunk(log, "a", 0)])
    subject = chunk(log, "a", 0).envelope.subject.encode()
    fences = [
        chunk(log, "a", 0).envelope.subject,
        about(log.run, "rollout", "a"),
        everything_about(log.run, "a"),
        every_event(log.run),
    ]
    position = 1
    for number, fence in enumerate(fences, 1):
        await strange(Write(subject, b"?"))
        await strange(Write(subject, b"??"))
        with pytest.raises(Conflict) as caught:
            await log.append([chunk(log, "a", 100, Fence(fence, position - 1))])
        assert (caught.value.expected, caught.value.actual) == (position - 1, position)
        assert await log.append([chunk(log, "a", 4 * number, Fence(fence, position))]) == [position + 3]
        position += 3
    await strange(Write(subject, b"?"))
    together = [chunk(log, "a", 90, Fence(fences[0], position)), reward(log, "a", fence=Fence(fences[2], position))]
    assert await log.append([*together, reward(log, "b")]) == [position + 2, position + 3, position + 4]


async def test_what_may_be_stored_once_is_stored_where_only_strangers_were(log: EventLog, strange: Strange) -> None:
    first = once(reward(log, "a").envelope)
    for data in (b"", b"?", b"{}"):
        await strange(Write(first.envelope.subject.encode(), data))
    assert await log.append([first]) == [4]
    await strange(Write(first.envelope.subject.encode(), b"?"))
    assert await log.append([first]) == [4]
    with pytest.raises(Conflict):
        await log.append([once(chunk(log, "a", 0).envelope), once(failure(log, "x").envelope), once_more(log)])
    assert await log.position() == 4


def once_more(log: EventLog):  # type: ignore[no-untyped-def]
    """Another event that may be the only one about a sample, which has one."""
    return chunk(log, "z", 0, Fence(about(log.run, "reward", "a"), 0))


@pytest.mark.parametrize("together", [1, 3])
async def test_an_id_that_a_stranger_has_used_is_still_the_events(
    together: int, opened: Open, strange: Strange
) -> None:
    """The server takes an id for known wherever in the stream it was used, for the time of its window."""
    log = await opened()
    appends = [reward(log, f"s{n}") for n in range(together)]
    for append in appends:
        await strange(claim(append.envelope.subject, append.envelope))
    await strange(claim(failure(log, "x").envelope.subject, chunk(log, "s0", 0).envelope))
    positions = await log.append(appends)
    assert positions == list(range(together + 2, 2 * together + 2))
    assert await log.append([chunk(log, "s0", 0)]) == [2 * together + 2]
    for each in (log, await opened()):
        assert await each.append([*appends, chunk(log, "s0", 0)]) == [*positions, 2 * together + 2]
        assert [r.envelope.id for r in await everything(each)] == [
            *(append.envelope.id for append in appends), chunk(log, "s0", 0).envelope.id,
        ]  # fmt: skip


async def test_an_event_that_is_sent_again_is_not_there_twice(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the server has forgotten its id. With all its headers it is refused, with its id alone it is foreign."""
    monkeypatch.setattr(stream, "DUPLICATE_WINDOW_S", 0.1)
    log = await JetStreamLog.open(server.url, "again")
    await log.append([reward(log, "a")])
    await log.append([chunk(log, "a", 0), chunk(log, "a", 4), reward(log, "b")])
    await asyncio.sleep(0.5)
    sent = [answer.head.partition(b"\r\nNats-Stream: ")[0] + b"\r\n\r\n" for answer in await log._stream.page(1, 4)]
    async with RawWriter(server.url) as writer:
        for number, recorded in enumerate(await everything(log)):
            with contextlib.suppress(AssertionError, TimeoutError):
                async with asyncio.timeout(0.5):
                    await writer.publish(Write(recorded.subject.encode(), recorded.data, sent[number]))
    async with RawWriter(server.url) as writer:
        for recorded in await everything(log):
            ids = head(Nats_Msg_Id=recorded.envelope.id)
            await writer.publish(Write(recorded.subject.encode(), recorded.data, ids))
    assert [r.position for r in await everything(log)] == [1, 2, 3, 4]
    assert {type(r) for r in await records(log, 5)} == {ForeignRecord}
    await log.close()


async def test_an_event_behind_many_pages_of_them_is_found(
    log: EventLog, strange: Strange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "PAGE", 4)
    await log.append([reward(log, "a"), reward(log, "b")])
    subject = reward(log, "a").envelope.subject.encode()
    for number in range(50):
        await strange(Write(subject, b"%d" % number))
    last = await log.last(about(log.run, "reward", "a"))
    assert last is not None
    assert last.position == 1
    assert await log.position() == 2
    assert await log.last(of_type(log.run, "rollout.failed")) is None


def _appended(message_id: str) -> bytes:
    """The headers of the first append on a subject."""
    return head(Nats_Msg_Id=message_id, Nats_Expected_Last_Subject_Sequence="0")


async def test_a_newer_versions_event_is_not_lost_in_silence(log: EventLog, strange: Strange) -> None:
    """It has all that can be known of an event of a type or schema to come: run, subject, message id."""
    event = reward(log, "a").envelope
    newer = encode(event).replace(b"\xa6schema\x01", b"\xa6schema\x63")
    unknown = encode(event).replace(b"reward.assigned", b"reward.redacted")
    ours = _appended(event.id)
    await strange(Write(event.subject.encode(), unknown, ours))  # its subject is of another type
    assert await everything(log) == []
    later = reward(log, "b").envelope
    newer_b = encode(later).replace(b"\xa6schema\x01", b"\xa6schema\x63")
    assert newer != newer_b
    if isinstance(log, MemoryLog):
        with pytest.raises(UnknownSchemaVersion, match=r"^position 2 \(slime\..*\.reward\.assigned\.b\): "):
            await strange(Write(later.subject.encode(), newer_b, _appended(later.id)))
        return
    await strange(Write(later.subject.encode(), newer_b, _appended(later.id)))
    with pytest.raises(UnknownSchemaVersion, match=r"^position 2 \(slime\..*\.reward\.assigned\.b\): "):
        await everything(log)
    other = later.subject.replace("assigned", "redacted").encode()
    kept = encode(failure(log, "c").envelope).replace(b"rollout.failed", b"reward.redacted")
    assert kept != unknown
    redacted = encode(later).replace(b"reward.assigned", b"reward.redacted")
    await strange(Write(other, redacted, _appended(later.id + "-1")))
    with pytest.raises(UnknownEventType, match=r"^position 3 "):
        await everything(log, 3)


async def test_a_log_is_restored_with_them(opened: Open, strange: Strange, backend: Backend) -> None:
    was = MemoryLog((await opened()).run)
    await was.append([reward(was, "a"), chunk(was, "a", 0)])
    for kind in KINDS:
        write = make(kind, scene(was))
        was.publish(write.subject.decode(errors="backslashreplace"), write.data, write.message_id)
    await was.append([reward(was, "b"), chunk(was, "a", 4)])
    everyone = [record async for record in was.read_records()]
    log = await opened()
    await log.restore(everyone[:5])  # type: ignore[attr-defined]
    await log.restore(everyone[3:9])  # type: ignore[attr-defined]
    await log.restore(everyone[8:])  # type: ignore[attr-defined]
    await log.restore(everyone)  # type: ignore[attr-defined]
    again = await records(await opened())
    assert [(r.position, r.data) for r in again] == [(r.position, r.data) for r in everyone]
    subjects = [
        (restored.subject, was.subject) for restored, was in zip(again, everyone, strict=True) if "*" not in was.subject
    ]
    assert all(subject == was for subject, was in subjects)
    assert [r.position for r in again if isinstance(r, Recorded)] == [r.position for r in was.records]
    assert await log.append([reward(log, "b"), reward(log, "c")]) == [was.records[2].position, len(everyone) + 1]
    with pytest.raises(Conflict):
        await log.restore([*everyone[:2], msgspec.structs.replace(everyone[2], data=b"other")])  # type: ignore[attr-defined]
