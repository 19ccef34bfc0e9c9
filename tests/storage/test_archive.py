"""The archive: what goes in comes out, damage is named, and the archivist never loses, repeats or talks too long."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec
import pytest

from actors.archivist import ArchiveOutcome, Backoff, SealPolicy, archive_run, should_seal
from schemas.archives import ArchiveSealed
from schemas.errors import (
    ArchiveDamaged,
    Conflict,
    DeadlineExceeded,
    LogUnavailable,
    StoreUnavailable,
    UnknownSchemaVersion,
)
from schemas.prompts import PromptSubmitted, Source
from schemas.runs import RunFinished
from schemas.subjects import of_type
from storage.archive.log import ArchivedLog
from storage.archive.manifest import LAYOUT, SegmentManifest, manifest_name, to_json
from storage.archive.reader import ArchiveReader, ArchiveSummary
from storage.archive.writer import ArchiveWriter
from storage.hash_chain import link_all
from storage.log import Recorded
from storage.memory_log import MemoryLog
from storage.object_store import ObjectFolder
from tests import made
from tests.state.whole_log import fold
from tests.storage.stores import StoreUrl
from tests.storage.waiting import until

EAGER = SealPolicy(max_bytes=8000, max_age_s=0.05, look_s=0.01)
BRISK = Backoff(first_s=0.01, most_s=0.02, deadline_s=20.0)


def prompt(i: int) -> PromptSubmitted:
    return made.submitted(f"g{i}", text="what?", tokens=range(i % 50), source=Source("f", row=i))


async def recorded(count: int) -> list[Recorded]:
    return (await made.log(*map(prompt, range(count)))).records


def write(store: StoreUrl, records: list[Recorded], per_segment: int) -> ArchiveWriter:
    writer = ArchiveWriter(store.url, "r", store.options)
    for number, record in enumerate(records, 1):
        writer.add(record)
        if number % per_segment == 0:
            writer.seal()
    return writer


def at(path: Path) -> StoreUrl:
    return StoreUrl(str(path))


async def test_round_trip_and_restart(store: StoreUrl) -> None:
    records = await recorded(25)
    write(store, records[:17], 5)  # 15 sealed, 2 lost with the writer
    second = ArchiveWriter(store.url, "r", store.options)
    assert second.next_position == 16
    assert not ArchiveReader(store.url, "r", store.options).closed
    write(store, records[15:], 4).close()
    reader = ArchiveReader(store.url, "r", store.options)
    assert list(reader.read()) == records
    assert [r.position for r in reader.read(start=13)] == list(range(13, 26))
    stored = sum(manifest.bytes for manifest in reader.segments)
    assert reader.verify() == ArchiveSummary(segments=6, events=25, bytes=stored, closed=True)
    for manifest in reader.segments:
        datas = [record.data for record in records[: manifest.last]]
        assert (manifest.before, manifest.chain) == tuple(link.hex() for link in link_all(b"", datas))


async def test_a_second_writer_is_refused(store: StoreUrl) -> None:
    records = await recorded(4)
    first, second = (ArchiveWriter(store.url, "r", store.options) for _ in range(2))
    for record in records[:2]:
        first.add(record)
    for record in records[:3]:
        second.add(record)
    first.seal()
    with pytest.raises(Conflict, match="another writer"):
        second.seal()
    assert ArchiveReader(store.url, "r", store.options).last == 2


async def test_a_gap_or_repeat_is_refused(tmp_path: Path) -> None:
    records = await recorded(3)
    writer = write(at(tmp_path), records[:1], 9)
    for wrong in (records[0], records[2]):
        with pytest.raises(ArchiveDamaged, match="needs position 2"):
            writer.add(wrong)


async def test_a_retried_seal_writes_the_same_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store took the manifest but its answer was lost; meanwhile more events came."""
    records = await recorded(3)
    writer = write(at(tmp_path), records[:2], 9)
    create = ObjectFolder.create

    def lose_the_answer(self: ObjectFolder, name: str, data: bytes) -> bool:
        create(self, name, data)
        if name.startswith("manifest"):
            raise StoreUnavailable("no answer")
        return True

    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "create", lose_the_answer)
        with pytest.raises(StoreUnavailable):
            writer.seal()
    writer.add(records[2])
    manifest = writer.seal()
    assert manifest is not None
    assert (manifest.first, manifest.last, writer.next_position) == (1, 2, 4)
    writer.close()
    assert list(ArchiveReader(str(tmp_path), "r").read()) == records


async def test_a_flipped_bit_anywhere_is_found(tmp_path: Path) -> None:
    write(at(tmp_path), await recorded(9), 3).close()
    for path in sorted(tmp_path.rglob("*.*")):
        good = path.read_bytes()
        for offset in range(0, len(good) - 1, max(1, len(good) // 40)):
            path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
            with pytest.raises(ArchiveDamaged, match=r"[Rr]estore"):
                ArchiveReader(str(tmp_path), "r").verify()
        path.write_bytes(good)
    assert ArchiveReader(str(tmp_path), "r").verify().events == 9


async def test_torn_and_missing_parts_are_named(tmp_path: Path) -> None:
    writer = write(at(tmp_path), await recorded(9), 3)
    writer.close()
    segment = tmp_path / "r" / writer.segments[1].name
    good = segment.read_bytes()
    segment.write_bytes(good[:-1])
    with pytest.raises(ArchiveDamaged, match=r"segment 2 \(positions 4 to 6\)"):
        ArchiveReader(str(tmp_path), "r").verify()
    segment.unlink()
    with pytest.raises(ArchiveDamaged, match="missing"):
        ArchiveReader(str(tmp_path), "r").verify()
    segment.write_bytes(good)
    for number, complaint in ((3, "lists 3 segments"), (2, "segment 2, from position 4, has no manifest")):
        path = tmp_path / "r" / manifest_name(number)
        manifest = path.read_bytes()
        path.unlink()
        with pytest.raises(ArchiveDamaged, match=complaint):
            ArchiveReader(str(tmp_path), "r")
        path.write_bytes(manifest)


async def test_a_chain_that_is_not_that_of_the_events_is_found(tmp_path: Path) -> None:
    """A manifest's chain is taken at its word by who folds, and linked anew by who verifies."""
    write(at(tmp_path), await recorded(3), 3)
    path = tmp_path / "r" / manifest_name(1)
    manifest = msgspec.json.decode(path.read_bytes(), type=SegmentManifest)
    others = link_all(b"other", (record.data for record in await recorded(3)))
    forged = msgspec.structs.replace(manifest, before=others[0].hex(), chain=others[1].hex())
    path.write_bytes(to_json(forged))
    with pytest.raises(ArchiveDamaged, match="up to position 3 do not give the chain"):
        ArchiveReader(str(tmp_path), "r").verify()
    path.write_bytes(to_json(msgspec.structs.replace(forged, chain=manifest.chain)))
    with pytest.raises(ArchiveDamaged, match="up to position 3 do not give the chain"):
        await fold(ArchivedLog(ArchiveReader(str(tmp_path), "r"), "r"))


def test_a_segment_of_a_newer_layout_is_left_alone(tmp_path: Path) -> None:
    manifest = SegmentManifest(
        segment=1, first=1, last=1, count=1, bytes=1, raw_bytes=1, sha256="", name="", parent="", layout=LAYOUT + 1
    )
    ObjectFolder(str(tmp_path / "r")).create(manifest_name(1), to_json(manifest))
    with pytest.raises(UnknownSchemaVersion, match="upgrade"):
        ArchiveReader(str(tmp_path), "r")


def test_when_to_seal() -> None:
    policy = SealPolicy(max_bytes=100, max_age_s=10.0, look_s=0.01)
    assert should_seal(policy, 100, True, 0.0)
    assert should_seal(policy, 1, True, 10.0)
    assert not should_seal(policy, 99, True, 9.9)
    assert not should_seal(policy, 50, False, 1e9), "archive.sealed alone must not make the next segment"


def finished(log: MemoryLog) -> RunFinished:
    return made.finished(events=len(log.records), state_digest="d")


async def archive(log: MemoryLog, store: StoreUrl, stop: asyncio.Event | None = None) -> ArchiveOutcome:
    writer = ArchiveWriter(store.url, "r", store.options)
    running = archive_run(log, writer, "archivist", stop=stop, policy=EAGER, backoff=BRISK)
    return await asyncio.wait_for(running, 60)


async def test_a_whole_run_is_archived_with_its_last_word_and_none_after(store: StoreUrl) -> None:
    log = await made.log(made.started(code_version="0"))
    task = asyncio.create_task(archive(log, store))
    for i in range(0, 60, 3):
        await made.say(log, *map(prompt, range(i, i + 3)))
        await asyncio.sleep(0.005)
    async with asyncio.timeout(60):
        while await log.last(of_type("r", "archive.sealed")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await made.say(log, finished(log))
    assert await task is ArchiveOutcome.FINISHED
    assert isinstance(log.records[-1].envelope.event, RunFinished)
    reader = ArchiveReader(store.url, "r", store.options)
    assert reader.closed
    assert list(reader.read()) == log.records
    seals = [r.envelope.event for r in log.records if isinstance(r.envelope.event, ArchiveSealed)]
    assert [(e.segment, e.last, e.sha256) for e in seals] == [
        (m.segment, m.last, m.sha256) for m in reader.segments[: len(seals)]
    ]
    assert seals
    assert await archive(log, store) is ArchiveOutcome.FINISHED, "starting it again changes nothing"
    assert reader.verify() == ArchiveReader(store.url, "r", store.options).verify()


async def test_a_silent_log_comes_to_rest(tmp_path: Path) -> None:
    log, stop = MemoryLog("r"), asyncio.Event()
    await made.say(log, prompt(0))
    task = asyncio.create_task(archive(log, at(tmp_path), stop))
    await until(lambda: len(log.records) > 1)
    await asyncio.sleep(5 * EAGER.max_age_s)
    assert len(log.records) == 2, "one segment, one archive.sealed, then silence"
    stop.set()
    assert await task is ArchiveOutcome.STOPPED
    assert ArchiveReader(str(tmp_path), "r").last >= 2


async def test_an_archivist_that_died_before_saying_so_is_completed_by_the_next(tmp_path: Path) -> None:
    log, stop = MemoryLog("r"), asyncio.Event()
    await made.say(log, *map(prompt, range(5)))
    write(at(tmp_path), log.records, 5)
    stop.set()
    assert await archive(log, at(tmp_path), stop) is ArchiveOutcome.STOPPED
    event = log.records[5].envelope.event
    assert isinstance(event, ArchiveSealed)
    assert (event.segment, event.first, event.last) == (1, 1, 5)


async def test_a_finished_run_that_was_resumed_goes_on(tmp_path: Path) -> None:
    log = MemoryLog("r")
    await made.say(log, prompt(0), finished(log))
    assert await archive(log, at(tmp_path)) is ArchiveOutcome.FINISHED
    await made.say(log, made.resumed(code_version="0"))
    task = asyncio.create_task(archive(log, at(tmp_path)))
    await made.say(log, prompt(1))
    await until(lambda: not ArchiveReader(str(tmp_path), "r").closed)
    await made.say(log, finished(log))
    assert await task is ArchiveOutcome.FINISHED
    reader = ArchiveReader(str(tmp_path), "r")
    assert reader.closed
    assert list(reader.read()) == log.records


class ShakyLog(MemoryLog):
    """Every other call does not answer, and readers are cut off after a few events."""

    calls = 0

    def _shake(self) -> None:
        self.calls += 1
        if self.calls % 2:
            raise LogUnavailable("gone")

    async def append(self, appends):  # type: ignore[no-untyped-def]
        if any(isinstance(a.envelope.event, ArchiveSealed) for a in appends):
            self._shake()
        return await super().append(appends)

    async def last(self, subject):  # type: ignore[no-untyped-def]
        self._shake()
        return await super().last(subject)

    async def read(self, start=1, subject=None, *, follow=False):  # type: ignore[no-untyped-def]
        self._shake()
        count = 0
        async for record in super().read(start, subject, follow=follow):
            yield record
            count += 1
            if count == 7:
                raise LogUnavailable("gone")


async def test_log_and_store_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, dice = ShakyLog("r"), random.Random(7)
    create = ObjectFolder.create

    def shaky(self: ObjectFolder, name: str, data: bytes) -> bool:
        if dice.random() < 0.5:
            raise StoreUnavailable("gone")
        return create(self, name, data)

    monkeypatch.setattr(ObjectFolder, "create", shaky)
    task = asyncio.create_task(archive(log, at(tmp_path)))
    for i in range(60):
        await made.say(log, prompt(i))
    await made.say(log, finished(log))
    assert await task is ArchiveOutcome.FINISHED
    assert list(ArchiveReader(str(tmp_path), "r").read()) == log.records


async def test_a_store_that_stays_away_ends_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(self: ObjectFolder, name: str, data: bytes) -> bool:
        raise StoreUnavailable("s3 is away")

    monkeypatch.setattr(ObjectFolder, "create", gone)
    log = await made.log(prompt(0))
    writer = ArchiveWriter(str(tmp_path), "r")
    short = Backoff(first_s=0.01, deadline_s=0.1)
    with pytest.raises(DeadlineExceeded, match="archive's store: s3 is away"):
        await archive_run(log, writer, "a", policy=EAGER, backoff=short)
