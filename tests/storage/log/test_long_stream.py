"""A log whose beginning has left it: what the contract (run over `ForgetfulLog`) does not reach."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from schemas.errors import ArchiveDamaged, Conflict, ImpossibleCombination, LogDamaged, StorageError
from schemas.subjects import about, every_event, of_type
from storage.archive.reader import ArchiveReader
from storage.archive.writer import ArchiveWriter
from storage.jetstream import removal
from storage.jetstream.log import JetStreamLog
from storage.jetstream.long_stream import HOLLOW, LongStream
from storage.jetstream.stream import Stored, Stream
from storage.log import EventLog, Fence, append_all, once
from storage.nats.server import NatsServer
from tests.storage.log.appends import chunk, everything, published, reward
from tests.storage.nats_cluster import NatsCluster
from tests.storage.waiting import taken

_runs = itertools.count()
Open = Callable[[], Any]


@pytest.fixture
async def opened(server: NatsServer, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the test's log once more, as another process would."""
    run, logs = f"long-{next(_runs)}", list[JetStreamLog]()

    async def open_log() -> JetStreamLog:
        logs.append(await JetStreamLog.open(server.url, run, archive_url=str(tmp_path / "archive"), retry_s=20))
        return logs[-1]

    yield open_log
    for log in logs:
        await log.close()


async def archive(log: EventLog, folder: Path) -> ArchiveReader:
    """All there is, in one more segment."""
    writer = ArchiveWriter(str(folder / "archive"), log.run)
    async for recorded in log.read(writer.next_position):
        writer.add(recorded)
    writer.seal()
    return ArchiveReader(str(folder / "archive"), log.run)


async def let_go(log: JetStreamLog, folder: Path, upto: int | None = None) -> None:
    reader = await archive(log, folder)
    await log.remove_archived(reader, reader.last if upto is None else upto)


@pytest.mark.parametrize("is_judged", [True, False])
async def test_who_has_judged_before_it_left_judges_again(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_judged: bool
) -> None:
    """Pause a writer between its look at the past and its append, while what it would repeat leaves the log."""
    late, log = await opened(), await opened()
    judged, gate = asyncio.Event(), asyncio.Event()
    expect = late._stream.to_expect

    async def slow(fences: dict[str, int]) -> dict[str, int]:
        expected = await expect(fences)
        judged.set()
        await gate.wait()
        return expected  # type: ignore[no-any-return]

    monkeypatch.setattr(late._stream, "to_expect", slow)
    own = reward(log, "a") if is_judged else chunk(log, "a", 4, Fence(about(log.run, "rollout", "a"), 0))
    late_append = asyncio.create_task(late.append([own]))
    await judged.wait()
    await log.append([reward(log, "a"), chunk(log, "a", 0)])
    await let_go(log, tmp_path)
    gate.set()
    if is_judged:
        assert await asyncio.wait_for(late_append, 20) == [1]
    else:
        with pytest.raises(Conflict) as caught:
            await asyncio.wait_for(late_append, 20)
        assert (caught.value.expected, caught.value.actual) == (0, 2)
    assert await log.position() == 2


async def test_writers_and_readers_notice_nothing_while_everything_leaves(opened: Open, tmp_path: Path) -> None:
    """Each writer repeats what it has written long before; a follower of all, and of some, sees each event once."""
    log, count = await opened(), 60
    over = asyncio.Event()

    async def write(name: str) -> list[int]:
        own, positions = await opened(), list[int]()
        for i in range(count):
            fence = Fence(about(log.run, "rollout", name), positions[-2] if i else 0)
            positions += await own.append([chunk(own, name, 4 * i, fence), once(reward(own, f"{name}{i}").envelope)])
            again = await own.append([chunk(own, name, 4 * (i // 2)), reward(own, f"{name}{i // 3}")])
            assert again == [positions[2 * (i // 2)], positions[2 * (i // 3) + 1]]
        return positions

    async def follow(subject: str | None, count: int) -> list[int]:
        own, seen = await opened(), list[int]()
        async for recorded in own.read(1, subject, follow=True):
            seen.append(recorded.position)
            if len(seen) == count:
                break
            if len(seen) % 7 == 0:
                await asyncio.sleep(0.02)
        return seen

    async def forget() -> None:
        own = await opened()
        while not over.is_set():
            await let_go(own, tmp_path)

    async with asyncio.timeout(100):
        forgetting = asyncio.create_task(forget())
        followers = [
            asyncio.create_task(follow(None, 4 * count)),
            asyncio.create_task(follow(of_type(log.run, "reward.assigned"), 2 * count)),
        ]
        written = await asyncio.gather(write("a"), write("b"))
        seen = await asyncio.gather(*followers)
        over.set()
        await forgetting
    assert sorted(itertools.chain(*written)) == seen[0] == list(range(1, 4 * count + 1))
    assert seen[1] == sorted(positions for positions_of in written for positions in positions_of[1::2])
    assert [recorded.position for recorded in await everything(log)] == seen[0]
    assert (await log.extent()).first > 3 * count, "nearly all of it left meanwhile"


@pytest.mark.parametrize("step", ["_copy", "_change_entrance"])
async def test_a_removal_that_was_cut_is_done_again(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    log, done = await opened(), getattr(removal, step)
    await append_all(log, [chunk(log, f"s{i}", 0) for i in range(2500)])
    before = [recorded.data for recorded in await everything(log)]

    async def dies(*arguments: Any) -> None:
        await done(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(removal, step, dies)
    with pytest.raises(KeyboardInterrupt):
        await let_go(log, tmp_path)
    monkeypatch.undo()
    assert (await log.extent()).first == 1
    assert await (await opened()).append([chunk(log, "s7", 0), chunk(log, "new", 0)]) == [8, 2501]
    await let_go(await opened(), tmp_path, 2400)
    other = await opened()
    extent = await other.extent()
    assert (extent.first, extent.last) == (2401, 2501)
    assert [recorded.data for recorded in await everything(other)][:2500] == before
    assert await other.append([chunk(log, "s8", 0), chunk(log, "s2450", 0)]) == [9, 2451]


async def test_a_long_read_goes_over_the_seam(opened: Open, tmp_path: Path) -> None:
    log = await opened()
    await append_all(log, [chunk(log, f"s{i}", 0) for i in range(12_000)])
    before = [recorded.data async for recorded in log.read()]
    blocks = [(block.first, block.last, block.chain) async for block in log.event_blocks(1, b"", 1000)]
    await let_go(log, tmp_path, 4000)
    assert [recorded.data async for recorded in log.read()] == before
    assert [(block.first, block.last, block.chain) async for block in log.event_blocks(1, b"", 1000)] == blocks
    assert [recorded.position async for recorded in log.read(3999)] == list(range(3999, 12_001))


async def test_what_the_archive_does_not_hold_stays(opened: Open, tmp_path: Path) -> None:
    log = await opened()
    await log.append([reward(log, "a"), reward(log, "b")])
    reader = await archive(log, tmp_path)
    (segment,) = (tmp_path / "archive" / log.run / "segments").iterdir()
    torn = segment.read_bytes()
    segment.write_bytes(torn[:-1])
    with pytest.raises(ArchiveDamaged):
        await log.remove_archived(reader, 2)
    segment.write_bytes(torn)
    elsewhere = ArchiveWriter(str(tmp_path / "elsewhere"), log.run)
    first, two = await everything(log)
    elsewhere.add(structs.replace(first, data=reward(log, "a", value=7.0).encoded()))
    elsewhere.add(two)
    elsewhere.seal()
    with pytest.raises(ArchiveDamaged, match="differs from the log"):
        await log.remove_archived(ArchiveReader(str(tmp_path / "elsewhere"), log.run), 2)
    await log.append([reward(log, "c")])
    with pytest.raises(ArchiveDamaged, match="ends before position 3"):
        await log.remove_archived(reader, 3)
    assert (await log.extent()).first == 1


async def test_an_archive_that_is_gone_is_named_and_one_that_moved_is_found(
    opened: Open, server: NatsServer, tmp_path: Path
) -> None:
    log = await opened()
    await log.append([reward(log, "a"), reward(log, "b")])
    await let_go(log, tmp_path, 1)
    (tmp_path / "archive").rename(tmp_path / "moved")
    other = await opened()
    with pytest.raises(ArchiveDamaged, match=r"position 1 .* was moved"):
        await everything(other)
    assert [recorded.position async for recorded in other.read(2)] == [2]
    assert await other.append([reward(log, "a")]) == [1], "ids are known without it"
    moved = await JetStreamLog.open(server.url, log.run, create=False, archive_url=str(tmp_path / "moved"))
    assert [recorded.position for recorded in await everything(moved)] == [1, 2]
    await moved.close()


async def test_an_archive_is_found_from_any_folder(
    server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, elsewhere = f"long-{next(_runs)}", tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    log = await JetStreamLog.open(server.url, run, archive_url="archive")
    await log.append([reward(log, "a")])
    await let_go(log, tmp_path)
    monkeypatch.chdir(elsewhere)
    other = await JetStreamLog.open(server.url, run, create=False)
    assert [recorded.position for recorded in await everything(other)] == [1]
    for opened_log in (log, other):
        await opened_log.close()


async def test_a_queue_never_skips_what_has_left(opened: Open, tmp_path: Path) -> None:
    log = await opened()
    await log.append([reward(log, "a"), chunk(log, "a", 0), reward(log, "b")])
    queue = await log.consume("q", of_type(log.run, "reward.assigned"))
    (first,) = await taken(queue, 1)
    await first.done()
    await let_go(log, tmp_path, 2)
    again = await (await opened()).consume("q", of_type(log.run, "reward.assigned"))
    (second,) = await taken(again, 1)
    assert second.recorded.position == 3
    with pytest.raises(LogDamaged, match="position 1"):
        await log.consume("later", of_type(log.run, "reward.assigned"))
    later = await log.consume("later", of_type(log.run, "reward.assigned"), start=3)
    assert [delivery.recorded.position for delivery in await taken(later, 1)] == [3]
    for taker in (queue, again, later):
        await taker.close()


async def test_a_log_that_was_made_to_keep_everything_does(server: NatsServer, tmp_path: Path) -> None:
    run = f"long-{next(_runs)}"
    log = await JetStreamLog.open(server.url, run)
    await log.append([reward(log, "a")])
    again = await JetStreamLog.open(server.url, run, archive_url=str(tmp_path))
    assert not again.lets_go
    with pytest.raises(ImpossibleCombination, match="keep all events"):
        await again.remove_archived(await archive(log, tmp_path), 1)
    for opened_log in (log, again):
        await opened_log.close()


async def test_a_log_that_is_made_anew_has_no_past(opened: Open, tmp_path: Path) -> None:
    log = await opened()
    await log.append([reward(log, "a")])
    await let_go(log, tmp_path)
    assert isinstance(log._stream, LongStream)
    # As a launcher that was killed in the midst of `remove` leaves it.
    await log.connection.api(f"STREAM.DELETE.{log._stream.name}")
    other = await opened()
    assert await other.position() == 0
    assert await other.append([reward(log, "a")]) == [1]
    await other.remove()
    with pytest.raises(StorageError):
        await other._stream.past.info()


async def test_no_event_is_refused_where_a_restored_log_lets_go(opened: Open, tmp_path: Path) -> None:
    log = await opened()
    await append_all(log, [reward(log, f"s{i}") for i in range(30)])
    reader = await archive(log, tmp_path)
    await log.remove()
    restored = await opened()
    records = list(reader.read())
    await restored.restore(records[:20])
    await restored.remove_archived(reader, 15)
    await restored.restore(records[:20])
    await restored.restore(records[20:])
    assert [recorded.position for recorded in await everything(restored)] == list(range(1, 31))
    assert await restored.append([reward(log, "s3")]) == [4]
    assert await restored.append([reward(log, "x", fence=Fence(every_event(log.run), 30))]) == [31]


async def test_a_fence_over_a_type_or_a_noun_counts_what_has_left(opened: Open, tmp_path: Path) -> None:
    log = await opened()
    await append_all(log, [reward(log, f"s{i}") for i in range(1500)])
    await let_go(log, tmp_path)
    for filter_ in (of_type(log.run, "reward.assigned"), f"slime.{log.run}.reward.>"):
        with pytest.raises(Conflict) as caught:
            await log.append([chunk(log, "a", 0, Fence(filter_, 7))])
        assert caught.value.actual == 1500
    assert await log.append([chunk(log, "a", 0, Fence(of_type(log.run, "reward.assigned"), 1500))]) == [1501]


async def test_an_empty_record_that_says_it_is_in_the_archive_is_not_looked_for(opened: Open) -> None:
    """Written past this package, by somebody who has the credentials of a role."""
    log = await opened()
    await log.connection.request(f"{log._stream.entrance}rollout.completed.x", b"", headers={HOLLOW: "7"})
    (stored,) = await log._stream.whole(await log._stream.page(1, 1))
    assert (stored.subject, stored.data) == (f"slime.{log.run}.rollout.completed.x", b"")


async def test_a_log_in_a_cluster_lets_go_too(cluster: NatsCluster, tmp_path: Path) -> None:
    run, url = f"long-{next(_runs)}", str(tmp_path / "archive")
    log, other = [await JetStreamLog.open(cluster.url, run, replicas=3, archive_url=url) for _ in range(2)]
    await append_all(log, [reward(log, f"s{i}") for i in range(300)], at_most=100)
    for upto in (100, 250):
        await let_go(log, tmp_path, upto)
        assert await other.append([reward(log, "s7"), reward(log, f"new-{upto}")]) == [8, await log.position()]
    with pytest.raises(Conflict):
        await other.append([reward(log, "x", fence=Fence(about(run, "reward", "s9"), 0))])
    assert [recorded.position for recorded in await everything(other)] == list(range(1, 303))
    assert (await other.extent()).first == 251
    for opened_log in (log, other):
        await opened_log.close()


async def test_what_has_left_is_known_again_after_a_restart_of_the_server(tmp_path: Path) -> None:
    """Also where its fence is over something else, as the archivist's is, and by the process that wrote it."""
    async with await NatsServer.start(tmp_path / "nats") as server:
        log = await JetStreamLog.open(server.url, "r", archive_url=str(tmp_path / "archive"))
        apart = reward(log, "a", fence=Fence(about("r", "run", "run"), 0))
        assert await log.append([apart, chunk(log, "b", 0)]) == [1, 2]
        await let_go(log, tmp_path)
        port = server.port
    async with await NatsServer.start(tmp_path / "nats", port=port):
        assert await log.append([apart]) == [1]
        assert await log.append([chunk(log, "b", 0)]) == [2]
        assert await log.position() == 2
        await log.close()


async def test_a_follower_misses_nothing_that_was_removed_while_it_looked(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pause a follower of announced events before it reads the next, until that has left the log."""
    log, reader = await opened(), await opened()
    looks, gate, subject = asyncio.Event(), asyncio.Event(), of_type(log.run, "weights.published")
    glance = Stream.glance

    async def slow(self: Stream, position: int, subject: str | None) -> list[Stored]:
        looks.set()
        await gate.wait()
        return await glance(self, position, subject)

    monkeypatch.setattr(Stream, "glance", slow)
    positions = await append_all(log, [published(log, 0)])
    events = reader.read(1, subject, follow=True)
    async with asyncio.timeout(30):
        assert (await anext(events)).position == positions[0]
        following = asyncio.create_task(anext(events))
        await asyncio.sleep(0.3)  # it has looked once, and waits for an announcement
        positions = await append_all(log, [published(log, version) for version in range(1, 4)], at_most=1)
        await looks.wait()
        await let_go(log, tmp_path)
        await log.append([published(log, 4)])
        gate.set()
        assert [(await following).position] + [(await anext(events)).position for _ in range(2)] == positions
    await events.aclose()
