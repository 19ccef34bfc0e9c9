"""`SeekIndex`: moments of a run stored every so many events, so that any other is near one of them.

<folder>/index.seek               where they are, and their times
<folder>/<position>.seek          one of them: a snapshot of the state, and its context

Only a cache. Without one, or with one of another history or other rules, a fold from position 1 makes it anew.
"""

import bisect
import logging
from pathlib import Path

import msgspec

from schemas.errors import StorageError
from slime_events.analysis.timetravel.moment import VERSION, Context, Moment
from slime_events.core.state.run import FOLD
from slime_events.core.state.snapshot import Snapshot, Unusable, pack, unpack
from storage.object_store import ObjectFolder

log = logging.getLogger(__name__)

EVERY = 5_000
"""Events from one to the next: what a seek may have to fold."""
_INDEX, _POINT = "index.seek", "{:012d}.seek"


class SeekPoint(Snapshot, frozen=True, kw_only=True):
    """A moment as it is stored."""

    context: Context


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """There is a point. chain: of the state there. latest_at: no event up to here has a later time (UTC ns)."""

    position: int
    chain: str
    latest_at: int


class Index(msgspec.Struct, kw_only=True):
    """The stored moments of a run, in order."""

    run: str
    fold: int = FOLD
    version: int = VERSION
    marks: list[Mark] = []

    def before(self, position: int) -> Mark | None:
        """The last mark before a position, so that at least one event is folded on the way there."""
        index = bisect.bisect_left(self.marks, position, key=lambda mark: mark.position)
        return self.marks[index - 1] if index else None

    def before_time(self, at: int) -> Mark | None:
        """The last mark up to which no event is later than `at`."""
        index = bisect.bisect_right(self.marks, at, key=lambda mark: mark.latest_at)
        return self.marks[index - 1] if index else None


class SeekIndex:
    """The index of `run` in a folder. What cannot be written is kept in memory."""

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
        log.info("the seek index in %s is made anew", self._folder)
        return None

    def point(self, mark: Mark) -> SeekPoint | None:
        """The stored point, if it is whole and the one that the index means."""
        try:
            stored = self._packed.get(mark.position) or (self._folder / _POINT.format(mark.position)).read_bytes()
            point = unpack(stored, SeekPoint)
        except (OSError, Unusable):
            return None
        return point if point.state.chain == mark.chain else None

    def add(self, moment: Moment) -> None:
        """Store a moment. It may go on afterwards."""
        state, context = moment.state, moment.context
        point = SeekPoint(fold=FOLD, before=moment.before, state=state, context=context)
        packed = pack(msgspec.msgpack.encode(point))
        self.index.marks.append(Mark(state.position, state.chain, context.latest_at))
        if not self._write(_POINT.format(state.position), packed):
            self._packed[state.position] = packed

    def save(self) -> None:
        """Store the index. Points that no stored index names do no harm."""
        self._write(_INDEX, pack(msgspec.msgpack.encode(self.index)))

    def _write(self, name: str, packed: bytes) -> bool:
        try:
            ObjectFolder(str(self._folder)).replace(name, packed)
        except StorageError as error:  # a folder that is read-only or full: this time it is kept in memory
            log.info("%s is not kept: %s", name, error)
            return False
        return True
