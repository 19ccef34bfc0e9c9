"""`archive_log`: everything that a log holds now into its archive, by whoever has no archivist running."""

from __future__ import annotations

import asyncio

from schemas.runs import RunFinished
from schemas.subjects import about
from storage.archive.writer import SEGMENT_BYTES, ArchiveWriter
from storage.log import EventLog


async def archive_log(log: EventLog, writer: ArchiveWriter) -> int:
    """Seal everything from the archive's end to the log's, and close the archive where the run has finished.

    Nothing is said in the log. The number of events archived. Raises what `ArchiveWriter.seal` and `EventLog.read` do.
    """
    begin = writer.next_position
    async for recorded in log.read(begin):
        writer.add(recorded)
        if writer.pending_bytes >= SEGMENT_BYTES:
            await asyncio.to_thread(writer.seal)
    last = await log.last(about(log.run, "run", "run"))
    if last is not None and isinstance(last.envelope.event, RunFinished):
        await asyncio.to_thread(writer.close)
    else:
        await asyncio.to_thread(writer.seal)
    return writer.next_position - begin
