"""Test segments: every layout stays readable, and damage is detected, or the segment is made again as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode
from schemas.errors import ArchiveDamaged
from storage.archive.log import ArchivedLog
from storage.archive.manifest import SegmentManifest
from storage.archive.reader import ArchiveReader
from storage.archive.segment import Segment, SegmentRecord, compress, decompress, pack, unpack
from storage.archive.transfer import repair_archive
from storage.archive.writer import ArchiveWriter
from storage.event_block import MANY, array_of
from storage.log import Recorded
from storage.memory_log import MemoryLog
from tests.golden.log_file import FOLDER, read_records
from tests.state.whole_log import fold

RUN = "golden"
LAYOUTS = [1, 2]
records = st.lists(st.builds(SegmentRecord, st.just(0), st.text(max_size=300), st.binary(max_size=70_000)), max_size=5)


def _manifest(layout: int, first: int = 1, count: int = 1) -> SegmentManifest:
    last = first + count - 1
    return SegmentManifest(
        segment=1,
        first=first,
        last=last,
        count=count,
        bytes=0,
        raw_bytes=0,
        sha256="",
        name="",
        parent="",
        layout=layout,
    )


def _unpack(layout: int, data: bytes) -> Segment:
    return unpack(_manifest(layout), data)


@pytest.fixture
def log() -> MemoryLog:
    """Return the log that the version with layout 1 archived."""
    log = MemoryLog(RUN)
    for position, data in enumerate(read_records(FOLDER / "v2.slimelog"), 1):
        envelope = decode(data)
        log.records.append(Recorded(position, envelope.subject, envelope, data))
    return log


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of an archive in layout 1: its URL."""
    shutil.copytree(FOLDER / "archive-1", tmp_path / "old")
    return tmp_path / "old"


async def test_an_archive_in_layout_1_is_read_and_folded(old: Path, log: MemoryLog) -> None:
    reader = ArchiveReader(str(old), RUN)
    assert {manifest.layout for manifest in reader.segments} == {1}
    assert list(reader.read()) == log.records
    assert list(reader.read(17)) == log.records[16:]
    assert reader.verify().events == len(log.records)
    archived = ArchivedLog(reader, RUN)
    assert await archived.last(log.records[20].subject) == log.records[20]
    assert await fold(archived) == await fold(log)


async def test_an_archive_in_layout_1_is_gone_on_with(old: Path, log: MemoryLog) -> None:
    for manifest in sorted((old / RUN / "manifest").iterdir())[1:]:
        manifest.unlink()
    writer = ArchiveWriter(str(old), RUN)
    for record in log.records[writer.next_position - 1 :]:
        writer.add(record)
    writer.close()
    reader = ArchiveReader(str(old), RUN)
    assert [(manifest.layout, manifest.chain) for manifest in reader.segments] == [(1, ""), (2, "")]
    assert list(reader.read()) == log.records
    assert await fold(ArchivedLog(reader, RUN)) == await fold(log)


async def test_a_damaged_segment_in_layout_1_is_made_again_as_it_was(old: Path, log: MemoryLog) -> None:
    reader = ArchiveReader(str(old), RUN)
    path = old / RUN / reader.segments[1].name
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    assert [manifest.segment for manifest in await repair_archive(log, str(old), RUN)] == [2]
    assert path.read_bytes() == good


@pytest.mark.parametrize("layout", LAYOUTS)
@given(stored=records, first=st.integers(1, 2**40))
def test_what_goes_in_comes_out(layout: int, stored: list[SegmentRecord], first: int) -> None:
    records = [msgspec.structs.replace(record, position=position) for position, record in enumerate(stored, first)]
    manifest = _manifest(layout, first, len(records))
    segment = unpack(manifest, pack(manifest.layout, records))
    assert list(segment.records()) == records
    assert [segment.record(number) for number in range(len(segment))] == records
    for begin in range(len(records)):
        assert list(segment.records(begin)) == records[begin:]
        datas = [record.data for record in records[begin:]]
        some = [datas[at : at + MANY] for at in range(0, len(datas), MANY)]
        assert list(segment.arrays(begin, len(records))) == [array_of(len(part), *part) for part in some]


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.binary(max_size=200), packed=st.booleans())
def test_no_bytes_make_a_reader_raise_anything_else(layout: int, data: bytes, packed: bool) -> None:
    with pytest.raises(ArchiveDamaged):
        _ = _unpack(layout, compress(data or b"x") if packed else data or b"x").subjects


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_segment_cut_short_inside_a_good_frame(layout: int) -> None:
    raw = decompress(pack(layout, [SegmentRecord(1, "subject", b"data")]))
    for end in (2, len(raw) - 1):
        with pytest.raises(ArchiveDamaged):
            _unpack(layout, compress(raw[:end]))


@pytest.mark.parametrize(
    "parts", [(b"\1\0\0\0", ["a"], b"xy"), (b"\1\0\0", ["a"], b"x"), (b"\1\0\0\0", ["a", "b"], b"x"), (b"", [1], b"")]
)
def test_parts_that_do_not_fit_each_other(parts: tuple[bytes, list[str], bytes]) -> None:
    with pytest.raises(ArchiveDamaged):
        _ = _unpack(2, compress(msgspec.msgpack.encode(parts))).subjects


def test_a_record_that_is_shorter_than_its_length_says_is_found() -> None:
    raw = decompress(pack(1, [SegmentRecord(1, "a", b"x")]))
    longer = (int.from_bytes(raw[:4], "little") + 1).to_bytes(4, "little") + raw[4:]
    with pytest.raises(ArchiveDamaged):
        _unpack(1, compress(longer))


def test_a_record_at_another_position_is_found() -> None:
    data = pack(1, [SegmentRecord(1, "a", b""), SegmentRecord(3, "a", b"")])
    with pytest.raises(ArchiveDamaged, match="position 3 instead of 2"):
        unpack(_manifest(1, count=2), data)
