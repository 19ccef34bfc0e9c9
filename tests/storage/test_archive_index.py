"""`ArchiveIndex`: what it finds is what reading everything finds, whatever lies in its cache."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from storage.archive import index as index_module
from storage.archive.index import ArchiveIndex
from storage.archive.reader import ArchiveReader
from storage.archive.segment import SegmentRecord
from storage.archive.writer import ArchiveWriter
from storage.log import Recorded

SUBJECTS = ("a", "b", "c")
PER_SEGMENT = 40


def record(position: int, subject: str) -> Recorded:
    return Recorded(position, subject, None, f"{position}".encode())  # type: ignore[arg-type]  # it is never decoded


@pytest.fixture
def reader(tmp_path: Path) -> ArchiveReader:
    """Three segments: rare subjects among many others, `a` not in the last one, `c` in the first one alone."""
    writer = ArchiveWriter(str(tmp_path / "archive"), "r")
    where = {2: "a", 9: "b", 17: "a", 33: "b", 38: "c", 45: "b", 52: "a", 71: "a", 90: "b", 113: "b"}
    for position in range(1, 3 * PER_SEGMENT + 1):
        writer.add(record(position, where.get(position, "other")))
        if not position % PER_SEGMENT:
            writer.seal()
    return ArchiveReader(str(tmp_path / "archive"), "r")


def index(reader: ArchiveReader, tmp_path: Path) -> ArchiveIndex:
    return ArchiveIndex(reader, tmp_path / "cache")


def found_by_reading(reader: ArchiveReader, subjects: tuple[str, ...], start: int = 1) -> list[SegmentRecord]:
    return [record for record in reader.records(start) if record.subject in subjects]


@pytest.mark.parametrize("one_key", [False, True])
def test_it_finds_what_reading_finds(
    one_key: bool, reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all subjects have one checksum."""
    if one_key:
        monkeypatch.setattr(index_module, "_key", lambda subject: 7)
    looked_up = index(reader, tmp_path)
    for size, start in itertools.product((1, 2, 3), (1, 2, 3, 40, 41, 53, 113, 114, 120)):
        for subjects in itertools.combinations(SUBJECTS, size):
            assert list(looked_up.of_subjects(subjects, start)) == found_by_reading(reader, subjects, start)
    last = {record.subject: record for record in found_by_reading(reader, SUBJECTS)}
    assert looked_up.last_of_each([*SUBJECTS, "nobody"]) == last
    assert {subject: record.position for subject, record in last.items()} == {"a": 71, "b": 113, "c": 38}


@pytest.mark.parametrize("place", [0, 4, -1])
def test_a_damaged_table_is_made_again(
    place: int, reader: ArchiveReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "WORTH_KEEPING", 1)
    index(reader, tmp_path).last_of_each(SUBJECTS)
    tables = sorted((tmp_path / "cache").glob("*.rows"))
    assert len(tables) == 3
    good = {path: path.read_bytes() for path in tables}
    for path, stored in good.items():
        damaged = bytearray(stored)
        damaged[place] ^= 1
        path.write_bytes(damaged)
    assert list(index(reader, tmp_path).of_subjects(SUBJECTS)) == found_by_reading(reader, SUBJECTS)
    assert {path: path.read_bytes() for path in tables} == good
