"""`Snapshots`: the newest snapshots of a run, as files in one folder."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from slime_events.core.state.snapshot import Snapshot, Unusable, pack, unpack
from storage.log import EventLog
from storage.object_store import ObjectFolder

log = logging.getLogger(__name__)

KEPT = 2
"""The newest, and one more for when the newest is damaged."""
SUFFIX = ".snapshot"


class Snapshots:
    """`<folder>/<position, 12 digits>.snapshot`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, position: int, taken: bytes) -> None:
        """Keep what `take` gave at `position`, whole or not at all, and let go of all but the newest.

        Raises NoSpace, StoreUnavailable.
        """
        ObjectFolder(str(self._folder)).replace(f"{position:012d}{SUFFIX}", pack(taken))
        for old in self._paths()[KEPT:]:
            old.unlink(missing_ok=True)

    async def newest(self, events: EventLog) -> Snapshot | None:
        """The newest that is of this log; those that are not are passed over with a note."""
        for path in self._paths():
            found = await asyncio.to_thread(_read, path)
            if isinstance(found, Snapshot):
                found = await _checked(found, events)
            if isinstance(found, Snapshot):
                return found
            log.warning("snapshot %s is not used: %s", path, found.reason)
        return None

    def _paths(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob(f"*{SUFFIX}"), reverse=True)


def _read(path: Path) -> Snapshot | Unusable:
    try:
        return unpack(path.read_bytes())
    except OSError as error:
        return Unusable(f"it cannot be read: {error}")


async def _checked(snapshot: Snapshot, events: EventLog) -> Snapshot | Unusable:
    """Itself, if the log has at its position the event that it chains to."""
    if snapshot.state.run != events.run:
        return Unusable(f"it is of run {snapshot.state.run}")
    async with contextlib.aclosing(events.read(snapshot.position)) as read:  # type: ignore[type-var]
        last = await anext(read, None)
    if last is None:
        return Unusable(f"the log ends before its position {snapshot.position}")
    if not snapshot.is_followed_by(last.data):
        return Unusable(f"the log has another history up to position {snapshot.position}")
    return snapshot
