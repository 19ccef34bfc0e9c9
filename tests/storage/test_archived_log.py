"""`ArchivedLog`: an archive read as the log that it is a copy of."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.subjects import of_type
from storage.archive import ArchiveWriter
from storage.archive_reader import ArchiveReader
from storage.archived_log import ArchivedLog
from storage.blobs import BlobStore
from storage.memory_log import MemoryLog
from tests.storage.archived import a_log


@pytest.fixture
async def was(tmp_path: Path) -> MemoryLog:
    """What was archived, in three segments."""
    log = await a_log(BlobStore(f"{tmp_path}/blobs"), [20] * 12, finished=True)
    writer = ArchiveWriter(str(tmp_path / "archive"), "r")
    for record in log.records:
        writer.add(record)
        if not record.position % 5:
            writer.seal()
    writer.close()
    return log


@pytest.fixture
def archived(was: MemoryLog, tmp_path: Path) -> ArchivedLog:
    return ArchivedLog(ArchiveReader(str(tmp_path / "archive"), "r"), "r")


@pytest.mark.parametrize("start", [1, 5, 6, 13, 14])
@pytest.mark.parametrize("subject", [None, "slime.r.prompt.submitted.*", "slime.r.*.*.g7", "slime.r.run.>"])
async def test_it_reads_as_the_log_does(archived: ArchivedLog, was: MemoryLog, start: int, subject: str | None) -> None:
    assert [r async for r in archived.read(start, subject)] == [r async for r in was.read(start, subject)]


async def test_it_ends_where_the_log_ended(archived: ArchivedLog, was: MemoryLog) -> None:
    assert await archived.position() == await was.position() == 13
    assert await archived.last(of_type("r", "prompt.submitted")) == was.records[11]
    assert await archived.last(of_type("r", "step.committed")) is None


async def test_nothing_will_come(archived: ArchivedLog) -> None:
    with pytest.raises(ValueError, match="nothing is appended to it"):
        await anext(archived.read(follow=True))
