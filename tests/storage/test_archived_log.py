"""`ArchivedLog`: an archive read as the log that it is a copy of."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.subjects import about, every_event, of_type
from storage.archive import index
from storage.archive.index import ArchiveIndex
from storage.archive.log import ArchivedLog
from storage.archive.reader import ArchiveReader
from storage.blobs import BlobStore
from storage.log import Subjects
from storage.memory_log import MemoryLog
from tests import made
from tests.storage.archived import a_log


@pytest.fixture
async def was(tmp_path: Path) -> MemoryLog:
    """Return an archived log of three segments."""
    log = await a_log(BlobStore(f"{tmp_path}/blobs"), [20] * 12, finished=True)
    made.archived(tmp_path / "archive", log.records, per_segment=5)
    return log


@pytest.fixture
def archived(was: MemoryLog, tmp_path: Path) -> ArchivedLog:
    return ArchivedLog(ArchiveReader(str(tmp_path / "archive"), "r"), "r")


@pytest.mark.parametrize("start", [1, 5, 6, 13, 14])
@pytest.mark.parametrize(
    "subject",
    [
        None,
        "slime.r.prompt.submitted.*",
        "slime.r.*.*.g7",
        "slime.r.run.*.run",
        "slime.r.run.>",
        ("slime.r.prompt.*.g7", "slime.r.run.>"),
    ],
)
async def test_it_reads_as_the_log_does(archived: ArchivedLog, was: MemoryLog, start: int, subject: Subjects) -> None:
    assert [r async for r in archived.read(start, subject)] == [r async for r in was.read(start, subject)]


async def test_it_ends_where_the_log_ended(archived: ArchivedLog, was: MemoryLog) -> None:
    assert await archived.position() == await was.position() == 13
    assert await archived.last(of_type("r", "prompt.submitted")) == was.records[11]
    assert await archived.last(of_type("r", "step.committed")) is None
    assert await archived.last(about("r", "prompt", "g7")) == await was.last(about("r", "prompt", "g7")) is not None
    assert await archived.last(about("r", "prompt", "nobody")) is None
    assert await archived.last("slime.r.run.*.run") == was.records[12]


async def test_many_subjects_are_looked_up_at_once(archived: ArchivedLog, was: MemoryLog) -> None:
    subjects = [*{record.subject for record in was.records}, "slime.r.prompt.submitted.nobody"]
    last = await archived.last_of_each(subjects)
    assert last == await was.last_of_each(subjects)
    everything = every_event(was.run)
    assert sorted(await archived.subjects(everything)) == sorted(await was.subjects(everything))
    assert last.keys() == {record.subject for record in was.records}


async def test_an_index_that_was_kept_is_used_and_a_damaged_one_is_made_again(
    was: MemoryLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "WORTH_KEEPING", 1)
    reader, kept, subject = ArchiveReader(str(tmp_path / "archive"), "r"), tmp_path / "kept", was.records[6].subject
    expected = ArchiveIndex(reader, kept).last_of_each([subject])
    assert expected[subject].data == was.records[6].data
    files = sorted(kept.iterdir())
    before = [path.read_bytes() for path in files]
    monkeypatch.setattr(index, "make_table", None)  # making one fails now
    assert ArchiveIndex(reader, kept).last_of_each([subject]) == expected
    monkeypatch.undo()
    for path, stored in zip(files, before, strict=True):
        path.write_bytes(bytes([stored[0] ^ 1]) + stored[1:])
    assert ArchiveIndex(reader, kept).last_of_each([subject]) == expected


async def test_nothing_will_come(archived: ArchivedLog) -> None:
    with pytest.raises(ValueError, match="nothing is appended to it"):
        await anext(archived.read(follow=True))


def test_stored_records_from_the_first_or_a_later_position(was: MemoryLog, archived: ArchivedLog) -> None:
    assert [record.data for record in archived.records()] == [record.data for record in was.records]
    assert [record.position for record in archived.records(3)] == [record.position for record in was.records[2:]]
