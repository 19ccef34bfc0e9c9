"""`LeavingLog`: a log in memory out of which events leave for an archive, as they do on JetStream."""

from __future__ import annotations

from schemas.codec import decode
from storage.archive.reader import ArchiveReader
from storage.log import Recorded
from storage.memory_log import MemoryLog


class LeavingLog(MemoryLog):
    """left: up to this position what is read is what the archive gives back."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.left = 0

    async def remove_archived(self, archive: ArchiveReader, upto: int) -> None:
        queue = list(self._queues.values())[-1]  # those of earlier incarnations have no takers any more
        assert min(queue.leases, default=queue.seen + 1) > upto, "an engine still needs it"
        for record in archive.records(self.left + 1):
            if record.position > upto:
                break
            there = self.records[record.position - 1]
            assert (record.subject, record.data) == (there.subject, there.data)
            self.records[record.position - 1] = Recorded(
                record.position, record.subject, decode(record.data), record.data
            )
            self.left = record.position
        assert self.left >= upto, "the archive does not hold what leaves"
