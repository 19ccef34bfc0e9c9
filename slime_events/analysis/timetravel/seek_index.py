"""`SeekIndex`: snapshots of a run at regular intervals, so that any moment is near one of them.

<folder>/index.seek               positions and times of the snapshots
<folder>/<position>.seek          a snapshot of the state, with its context

It is only a cache. If it is missing, or belongs to another history or other rules, a fold from position 1 rebuilds it.
"""

import bisect
import logging
from pathlib import Path
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.errors import StorageError
from slime_events.analysis.timetravel.moment import VERSION, Context, Moment
from slime_events.core.state.run import FOLD
from slime_events.core.state.snapshot import Snapshot, Unusable, pack, unpack
from storage.object_store import ObjectFolder

log = logging.getLogger(__name__)

EVERY = 2_000
"""Number of events from one snapshot to the next, which a seek may have to fold."""
_INDEX, _POINT = "index.seek", "{:012d}.seek"


class SeekPoint(Snapshot, frozen=True, kw_only=True):
    """A stored moment."""

    context: Annotated[Context, doc("facts that the state does not keep")]


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the index: a stored moment."""

    position: Annotated[int, doc("its position")]
    chain: Annotated[str, doc("chain of the state there, hex")]
    latest_at: Annotated[int, doc("latest UTC of all events up to here [ns]")]


class Index(msgspec.Struct, kw_only=True):
    """The stored moments of a run, in order."""

    run: Annotated[str, doc("name of the run")]
    fold: Annotated[int, doc("version of the fold's rules")] = FOLD
    version: Annotated[int, doc("version of `Context` and of this index")] = VERSION
    marks: Annotated[list[Mark], doc("stored moments")] = []

    def before(self, position: int) -> Mark | None:
        """Return the last mark before a position, so that at least one event is folded on the way there."""
        index = bisect.bisect_left(self.marks, position, key=lambda mark: mark.position)
        return self.marks[index - 1] if index else None

    def before_time(self, at: int) -> Mark | None:
        """Return the last mark up to which no event is later than `at`."""
        index = bisect.bisect_right(self.marks, at, key=lambda mark: mark.latest_at)
        return self.marks[index - 1] if index else None


class SeekIndex:
    """The index of `run` in a folder. Snapshots that cannot be written are kept in memory."""

    def __init__(self, run: str, folder: Path) -> None:
        self._folder = folder
        self._packed: dict[int, bytes] = {}
        self.index = self._load(run) or Index(run=run)

    def _load(self, run: str) -> Index | None:
        try:
            index = unpack((self._folder / _INDEX).read_bytes(), Index)
        except OSError:
            return None
        except Unusable:
            index = None
        if index is not None and index.version == VERSION and index.run == run:
            return index
        log.info("the seek index in %s is rebuilt", self._folder)
        return None

    def point(self, mark: Mark) -> SeekPoint | None:
        """Return the stored point if it is complete and belongs to the mark."""
        try:
            stored = self._packed.get(mark.position) or (self._folder / _POINT.format(mark.position)).read_bytes()
            point = unpack(stored, SeekPoint)
        except (OSError, Unusable):
            return None
        return point if point.state.chain == mark.chain else None

    def add(self, moment: Moment) -> None:
        """Store a moment. The moment may be folded further afterwards."""
        state, context = moment.state, moment.context
        point = SeekPoint(fold=FOLD, before=moment.before, state=state, context=context)
        packed = pack(msgspec.msgpack.encode(point))
        self.index.marks.append(Mark(state.position, state.chain, context.latest_at))
        if not self._write(_POINT.format(state.position), packed):
            self._packed[state.position] = packed

    def save(self) -> None:
        """Store the index. Points outside any stored index do no harm."""
        self._write(_INDEX, pack(msgspec.msgpack.encode(self.index)))

    def _write(self, name: str, packed: bytes) -> bool:
        try:
            ObjectFolder(str(self._folder)).replace(name, packed)
        except StorageError as error:  # the folder is read-only or full: keep it in memory
            log.info("%s cannot be stored: %s", name, error)
            return False
        return True
