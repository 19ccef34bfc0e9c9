"""Archive and restore are inverse, whatever dies in between; damage is mended from the log or named."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import ArchiveDamaged, BlobMissing, Conflict, LogDamaged, StorageError
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState, state_digest
from storage.archive.reader import ArchiveReader
from storage.archive.transfer import archive_log, repair_archive, restore_log
from storage.archive.writer import ArchiveWriter, blobs_to_archive
from storage.blobs import BlobStore
from storage.jetstream.log import JetStreamLog
from storage.log import Append, EventLog
from storage.memory_log import MemoryLog
from storage.nats.server import NatsServer
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan
from tests.storage.archived import a_log, all_there
from tests.storage.fs_faults import Died, die_at
from tests.storage.stores import StoreUrl

_numbers = itertools.count()


async def restored(store: StoreUrl, blobs: BlobStore) -> MemoryLog:
    log = MemoryLog("r")
    await restore_log(ArchiveReader(store.url, "r", store.options), log, blobs)
    return log


def fresh() -> StoreUrl:
    return StoreUrl(f"memory://restore-{next(_numbers)}")


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=40), cuts=st.lists(st.integers(1, 15), max_size=4))
async def test_restoring_is_the_inverse_of_archiving(sizes: list[int], cuts: list[int]) -> None:
    """Over segments of any size, by several writers one after the other."""
    store, here, there = fresh(), BlobStore(fresh().url), BlobStore(fresh().url)
    log = await a_log(here, sizes)
    for cut in cuts:
        writer = ArchiveWriter(store.url, "r", blobs=here)
        for record in log.records[writer.next_position - 1 :][:cut]:
            writer.add(record)
        writer.seal()
    await archive_log(log, ArchiveWriter(store.url, "r", blobs=here))
    again = await restored(store, there)
    assert again.records == log.records
    all_there(again, there)


async def test_a_restored_run_folds_to_the_same_state(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=2)) as sim:
        sim.start_engine(Script(chunk=8))
        await sim.finish()
    store, blobs = fresh(), BlobStore(fresh().url)
    await archive_log(sim.log, ArchiveWriter(store.url, sim.log.run))
    again = MemoryLog(sim.log.run)
    await restore_log(ArchiveReader(store.url, again.run), again, blobs)
    assert state_digest(await _fold(again)) == state_digest(await _fold(sim.log))


async def _fold(log: EventLog) -> RunState:
    state = RunState(run=log.run)
    async for recorded in log.read():
        apply(state, recorded)
    return state


async def test_on_jetstream(server: NatsServer, tmp_path: Path) -> None:
    here, there, store = BlobStore(str(tmp_path / "a")), BlobStore(str(tmp_path / "b")), fresh()
    log = await a_log(here, [5] * 2300 + [80])
    await archive_log(log, ArchiveWriter(store.url, "r", blobs=here))
    target = await JetStreamLog.open(server.url, "r")
    done = await restore_log(ArchiveReader(store.url, "r"), target, there)
    assert (done.position, done.before, done.blobs) == (2301, 0, 1)
    assert [record async for record in target.read()] == log.records
    assert await target.append([Append(record.envelope) for record in log.records[7:9]]) == [8, 9]
    await target.close()


@pytest.mark.parametrize("kept", [1, 999, 1000, 1001, 2000])
async def test_an_interrupted_restore_goes_on(kept: int) -> None:
    store, blobs = fresh(), BlobStore(fresh().url)
    log = await a_log(blobs, [5] * 2000)
    await archive_log(log, ArchiveWriter(store.url, "r"))
    half = MemoryLog("r")
    await half.restore(log.records[:kept])
    done = await restore_log(ArchiveReader(store.url, "r"), half, blobs)
    assert (done.position, done.before) == (2000, kept)
    assert half.records == log.records


async def test_nothing_is_restored_over_another_log() -> None:
    store, blobs = fresh(), BlobStore(fresh().url)
    log = await a_log(blobs, [5] * 10)
    await archive_log(log, ArchiveWriter(store.url, "r"))
    for other in (await a_log(blobs, [5] * 11), await a_log(blobs, [5, 80, 5], finished=True)):
        with pytest.raises(Conflict, match="restore"):
            await restore_log(ArchiveReader(store.url, "r"), other, blobs)
    with pytest.raises(StorageError, match="nothing to restore"):
        await restored(fresh(), blobs)


async def test_a_log_that_does_not_keep_all_it_is_given_is_damaged() -> None:
    class Forgetful(MemoryLog):
        async def end(self) -> int:
            return max(0, await super().end() - 1)

    store, blobs = fresh(), BlobStore(fresh().url)
    await archive_log(await a_log(blobs, [5] * 3), ArchiveWriter(store.url, "r"))
    with pytest.raises(LogDamaged):
        await restore_log(ArchiveReader(store.url, "r"), Forgetful("r"), blobs)


async def test_a_blob_that_is_nowhere_is_named() -> None:
    store, here = fresh(), BlobStore(fresh().url)
    log = await a_log(here, [5, 80])
    await archive_log(log, ArchiveWriter(store.url, "r"))
    with pytest.raises(BlobMissing, match=r"neither at memory://.*nor in the archive"):
        await restored(store, BlobStore(fresh().url))
    assert (await restored(store, here)).records == log.records


def test_which_blobs_go_into_the_archive(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert blobs_to_archive(str(run / "blobs"), "memory://elsewhere", run) is not None
    assert blobs_to_archive(str(run / "blobs"), str(tmp_path / "backup"), run) is not None
    assert blobs_to_archive(str(run / "blobs"), str(run / "archive"), run) is None
    assert blobs_to_archive("memory://blobs", "memory://elsewhere", run) is None


async def test_an_archivist_may_die_at_any_write(store: StoreUrl) -> None:
    """Before and after each object that it writes (blob, segment, manifest, closed.json): the next archivist
    continues.
    """
    here, numbers = BlobStore(fresh().url), itertools.count(1)
    log = await a_log(here, [5, 80, 5, 90, 5], finished=True)
    for number, stored in ((n, s) for n in numbers for s in (False, True)):
        where = StoreUrl(f"{store.url}/{number}-{stored}", store.options)
        with pytest.MonkeyPatch.context() as patch:
            written = die_at(patch, number, stored=stored)
            try:
                await _archive_in_twos(log, where, here)
            except Died:
                pass
            else:
                assert written() == number - 1 > 8
                return
        await _archive_in_twos(log, where, here)
        assert (await restored(where, BlobStore(fresh().url))).records == log.records
        assert ArchiveReader(where.url, "r", where.options).closed


async def _archive_in_twos(log: MemoryLog, store: StoreUrl, blobs: BlobStore) -> None:
    writer = ArchiveWriter(store.url, "r", store.options, blobs=blobs)
    for record in log.records[writer.next_position - 1 :]:
        writer.add(record)
        if record.position % 2 == 0:
            await asyncio.to_thread(writer.seal)
    await asyncio.to_thread(writer.close)


async def test_a_damaged_segment_is_made_again_from_the_log(store: StoreUrl) -> None:
    blobs = BlobStore(fresh().url)
    log = await a_log(blobs, [5] * 9, finished=True)
    await _archive_in_twos(log, store, blobs)
    reader = ArchiveReader(store.url, "r", store.options)
    flipped, torn, lost = reader.segments[1], reader.segments[2], reader.segments[-1]
    good = reader._objects.read(flipped.name)
    reader._objects.replace(flipped.name, good[:40] + bytes([good[40] ^ 1]) + good[41:])
    reader._objects.replace(torn.name, reader._objects.read(torn.name)[:-7])
    reader._objects._fs.rm_file(f"{reader._objects._root}/{lost.name}")
    with pytest.raises(ArchiveDamaged, match=r"segment 2 \(positions 3 to 4\).*--repair"):
        await restored(store, blobs)
    assert reader.damaged() == [flipped, torn, lost]
    assert await repair_archive(log, store.url, "r", store.options) == [flipped, torn, lost]
    assert (await restored(store, blobs)).records == log.records
    assert await repair_archive(log, store.url, "r", store.options) == []


async def test_a_segment_of_another_log_is_not_mended() -> None:
    store, blobs = fresh(), BlobStore(fresh().url)
    log = await a_log(blobs, [5] * 4)
    await archive_log(log, ArchiveWriter(store.url, "r"))
    reader = ArchiveReader(store.url, "r")
    reader._objects.replace(reader.segments[0].name, b"")
    with pytest.raises(ArchiveDamaged, match="do not give segment 1"):
        await repair_archive(await a_log(blobs, [6] * 4), store.url, "r")
