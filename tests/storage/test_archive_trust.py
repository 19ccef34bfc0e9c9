"""Test what an archive verifies: a segment's bytes, a store's answer, the last writer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.archivist import ArchiveOutcome, SealPolicy, archive_run
from schemas.archives import ArchiveSealed
from schemas.envelope import enclose
from schemas.errors import ArchiveDamaged, StoreUnavailable
from schemas.prompts import PromptSubmitted, Source
from schemas.runs import RunFinished, RunResumed
from schemas.subjects import about
from storage.archive.log import ArchivedLog
from storage.archive.manifest import ManifestChain, SegmentManifest, digest_of, manifest_name, to_json
from storage.archive.reader import ArchiveReader
from storage.archive.segment import compress
from storage.archive.transfer import repair_archive
from storage.archive.writer import ArchiveWriter
from storage.log import Append, Recorded
from storage.memory_log import MemoryLog
from storage.object_store import ObjectFolder
from tests import made

RUN = "r"
END = made.finished(steps=0, state_digest="d")


def prompt(number: int, text: str = "what?") -> PromptSubmitted:
    return made.submitted(f"g{number}", text=text, source=Source("f", row=number))


async def recorded(count: int, text: str = "what?") -> list[Recorded]:
    return (await made.log(*(prompt(number, text) for number in range(count)), run=RUN)).records


def written(folder: Path, records: list[Recorded]) -> ArchiveWriter:
    writer = ArchiveWriter(str(folder), RUN)
    for record in records:
        writer.add(record)
    writer.seal()
    return writer


async def test_a_good_segment_of_the_same_size_in_another_s_place_is_found(tmp_path: Path) -> None:
    """Every check within it holds; only its digest is not the manifest's."""
    (ours,) = written(tmp_path / "ours", await recorded(3)).segments
    for number in range(200):
        other, log = tmp_path / f"other-{number}", MemoryLog(RUN)
        await log.restore(await recorded(3, f"{random.Random(number).randrange(36**5):05d}"))
        (theirs,) = written(other, log.records).segments
        if theirs.bytes == ours.bytes:
            break
    assert (theirs.bytes, theirs.count) == (ours.bytes, ours.count)
    assert theirs.sha256 != ours.sha256
    (tmp_path / "ours" / RUN / ours.name).write_bytes((other / RUN / theirs.name).read_bytes())
    reader = ArchiveReader(str(tmp_path / "ours"), RUN)
    with pytest.raises(ArchiveDamaged, match="its manifest says"):
        list(reader.read())
    assert reader.damaged() == [ours]
    with pytest.raises(ArchiveDamaged, match="archive of another log"):
        await repair_archive(log, str(tmp_path / "ours"), RUN)


async def test_a_store_that_cuts_what_it_is_given_is_found_before_the_manifest_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers that all is well. What it kept is put right once; a store that keeps nothing whole is refused."""
    create = ObjectFolder.create
    records = await recorded(3)

    def cutting(self: ObjectFolder, name: str, data: bytes) -> bool:
        return create(self, name, data[:-1] if name.startswith("segments") else data)

    monkeypatch.setattr(ObjectFolder, "create", cutting)
    written(tmp_path / "once", records)
    assert list(ArchiveReader(str(tmp_path / "once"), RUN).read()) == records
    monkeypatch.setattr(ObjectFolder, "replace", cutting)
    with pytest.raises(ArchiveDamaged, match="reads back differently"):
        written(tmp_path / "always", records)
    assert not ArchiveReader(str(tmp_path / "always"), RUN).segments


def forged(folder: Path, manifest: SegmentManifest, **changes: Any) -> ArchiveReader:
    """The archive with its only manifest changed."""
    path = folder / RUN / manifest_name(manifest.segment)
    path.write_bytes(to_json(msgspec.structs.replace(manifest, **changes)))
    return ArchiveReader(str(folder), RUN)


@pytest.mark.parametrize(
    "changes", [{"segment": 7}, {"parent": "0" * 64}, {"first": 2, "last": 4}, {"count": 2}, {"last": 4}]
)
async def test_a_manifest_that_does_not_follow_the_one_before_it_is_found(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    (manifest,) = written(tmp_path, await recorded(3)).segments
    path = tmp_path / RUN / manifest_name(1)
    path.write_bytes(to_json(msgspec.structs.replace(manifest, **changes)))
    with pytest.raises(ArchiveDamaged):
        ArchiveReader(str(tmp_path), RUN)


async def test_manifests_are_read_once_however_often_is_looked(tmp_path: Path) -> None:
    records = await recorded(4)
    writer = written(tmp_path, records[:2])
    chain = ManifestChain(ObjectFolder(str(tmp_path / RUN))).load()
    writer.add(records[2])
    writer.seal()
    assert [manifest.segment for manifest in chain.load().load().manifests] == [1, 2]
    assert (chain.last, chain.manifests) == (3, writer.segments)


@pytest.mark.parametrize("count", [2, 4])
async def test_a_segment_with_another_number_of_events_than_its_manifest_says_is_found(
    tmp_path: Path, count: int
) -> None:
    (manifest,) = written(tmp_path, await recorded(3)).segments
    reader = forged(tmp_path, manifest, count=count, last=count)
    with pytest.raises(ArchiveDamaged, match="it ends at position 3"):
        list(reader.read())
    assert len(reader.damaged()) == 1


@pytest.mark.parametrize("link", ["before", "chain"])
async def test_each_link_of_a_manifest_is_made_anew_by_who_verifies(tmp_path: Path, link: str) -> None:
    (manifest,) = written(tmp_path, await recorded(3)).segments
    with pytest.raises(ArchiveDamaged, match="do not give the chain"):
        forged(tmp_path, manifest, **{link: "0" * 64}).verify()


async def test_a_segment_whose_subjects_are_not_those_of_its_events_is_damaged(tmp_path: Path) -> None:
    """Its digest is the manifest's: it was so when it was written."""
    (manifest,) = written(tmp_path, await recorded(1)).segments
    data = compress(msgspec.msgpack.encode((b"\1\0\0\0", ["a", "b"], b"x")))
    name = f"segments/{manifest.segment:08d}-other.zst"
    (tmp_path / RUN / name).write_bytes(data)
    reader = forged(tmp_path, manifest, name=name, bytes=len(data), sha256=digest_of(data))
    assert [damage.segment for damage in reader.damaged()] == [1]


async def test_what_was_added_after_a_failed_seal_counts_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = await recorded(3)
    writer = ArchiveWriter(str(tmp_path), RUN)
    sizes = []
    for record in records[:2]:
        writer.add(record)
        sizes.append(writer.pending_bytes - sum(sizes))
    with monkeypatch.context() as patch:
        patch.setattr(ObjectFolder, "read", _away)
        with pytest.raises(StoreUnavailable):
            writer.seal()
    writer.add(records[2])
    whole = writer.pending_bytes
    writer.seal()
    assert writer.pending_bytes == whole - sum(sizes) > 0


def _away(self: ObjectFolder, name: str) -> bytes:
    raise StoreUnavailable("away")


async def test_of_all_that_is_said_of_a_run_the_last_event_is_the_last(tmp_path: Path) -> None:
    log = await made.log(made.resumed(code_version="0"), prompt(0), END)
    written(tmp_path, log.records)
    archived = ArchivedLog(ArchiveReader(str(tmp_path), RUN), RUN)
    assert await archived.last(about(RUN, "run", "run")) == log.records[2]


class EndsMeanwhile(MemoryLog):
    """The run's end is stored between an archivist's look and its word."""

    async def append(self, appends: Sequence[Append]) -> list[int]:
        over = any(isinstance(record.envelope.event, RunFinished) for record in self.records)
        if isinstance(appends[0].envelope.event, ArchiveSealed) and not over:
            await super().append([Append(enclose(RUN, END, at=1, producer="conductor"))])
        return await super().append(appends)


async def test_an_end_that_comes_between_an_archivist_s_look_and_its_word_stays_the_last(tmp_path: Path) -> None:
    log = EndsMeanwhile(RUN)
    await made.say(log, prompt(0))
    policy = SealPolicy(max_age_s=0.02, look_s=0.01)
    running = archive_run(log, ArchiveWriter(str(tmp_path), RUN), "archivist", policy=policy)
    assert await asyncio.wait_for(running, 60) is ArchiveOutcome.FINISHED
    assert [type(record.envelope.event) for record in log.records] == [PromptSubmitted, RunFinished]
    assert list(ArchiveReader(str(tmp_path), RUN).read()) == log.records


class ResumedMeanwhile(MemoryLog):
    """Another event of the run itself is stored between an archivist's look and its word."""

    async def append(self, appends: Sequence[Append]) -> list[int]:
        if isinstance(appends[0].envelope.event, ArchiveSealed):
            again = made.resumed(code_version="0")
            await super().append([Append(enclose(RUN, again, at=1, producer="launcher"))])
        return await super().append(appends)


async def test_a_segment_is_told_of_whatever_else_comes_between(tmp_path: Path) -> None:
    log, stop = ResumedMeanwhile(RUN), asyncio.Event()
    await made.say(log, prompt(0))
    stop.set()
    running = archive_run(log, ArchiveWriter(str(tmp_path), RUN), "archivist", stop=stop)
    assert await asyncio.wait_for(running, 60) is ArchiveOutcome.STOPPED
    assert [type(record.envelope.event) for record in log.records] == [PromptSubmitted, RunResumed, ArchiveSealed]
