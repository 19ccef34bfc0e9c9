"""`Snapshot`: a state stored with its log position, and `Snapshots`: the newest of a run as files in one folder.

Only a cache: without a valid snapshot a process folds the log from position 1 and gets the same state.
"""

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zstandard

from slime_events.core.state.run import FOLD, RunState
from storage.compression import decompress
from storage.log import Readable
from storage.object_store import ObjectFolder

log = logging.getLogger(__name__)

KEPT = 2
"""The newest, and one more in case the newest is damaged."""
SUFFIX = ".snapshot"
MAGIC = b"slime-events snapshot\n"
LEVEL = 3
T = TypeVar("T", bound=msgspec.Struct)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """fold: version of the rules that folded it. before: the chain up to the last event but one (hex). With the last
    event's bytes it gives the state's own chain, so one event of a log shows whether the snapshot is of its history.
    """

    fold: int
    before: str
    state: RunState

    @property
    def position(self) -> int:
        """Position of the last event folded in."""
        return self.state.position

    def is_followed_by(self, last: bytes) -> bool:
        """Whether the record at `position` continues the chain."""
        return hashlib.sha256(bytes.fromhex(self.before) + last).hexdigest() == self.state.chain


class Unusable(Exception):
    """Why a file holds no usable snapshot."""


def encode_snapshot(state: RunState, before: str) -> bytes:
    """The state as it is now, as MessagePack; later changes of the state do not matter."""
    return msgspec.msgpack.encode(Snapshot(fold=FOLD, before=before, state=state))


def pack(encoded: bytes) -> bytes:
    """The file of an encoded snapshot: magic, sha256 of the rest, zstd."""
    body = zstandard.ZstdCompressor(level=LEVEL).compress(encoded)
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes, kind: type[T]) -> T:
    """The snapshot, or another packed struct with a `fold`. Raises Unusable where it is damaged or of other rules."""
    head = len(MAGIC) + hashlib.sha256().digest_size
    digest, body = data[len(MAGIC) : head], data[head:]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        raise Unusable("it is damaged")
    try:
        plain = decompress(body)
        fold = msgspec.msgpack.decode(plain, type=_Fold).fold
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise Unusable(f"it holds no state: {error}") from error
    if fold != FOLD:
        raise Unusable(f"it was folded by rules {fold}, this version folds by rules {FOLD}")
    try:
        return msgspec.msgpack.decode(plain, type=kind)
    except msgspec.DecodeError as error:
        raise Unusable(f"it holds another state than its rules say: {error}") from error


class _Fold(msgspec.Struct, frozen=True):
    """Readable in snapshots of any version."""

    fold: int


def low_water(state: RunState) -> int:
    """The lowest position that a group without a verdict, or an evaluation without a result, still needs, or one before
    it: a state counts events.
    """
    decided = {*state.accepted, *(group for sealed in state.sealed.values() for group in sealed.groups)}
    open_ = (group.position for name, group in state.groups.items() if name not in decided)
    return min(open_, default=state.position + 1)


def training_start(state: RunState, version: int) -> int:
    """The lowest position that a trainer needs to continue from weights `version`: of prompts in later batches and in
    groups that are in no batch. 1 for versions older than the newest checkpoint, which the state has forgotten.
    """
    if version < min(state.batch_starts, default=state.next_step):
        return 1
    batches = (start for step, start in state.batch_starts.items() if step >= version)
    open_ = (group.position for group in state.groups.values())
    return min((*batches, *open_), default=state.position + 1)


S = TypeVar("S", bound=Snapshot)


class Snapshots(Generic[S]):
    """`<folder>/<position, 12 digits>.snapshot`. kind: what the files hold."""

    def __init__(self, folder: Path, kind: type[S] = Snapshot) -> None:  # type: ignore[assignment]  # S's default
        self._folder, self._kind = folder, kind

    def write(self, position: int, encoded: bytes) -> None:
        """Store an encoded snapshot of `position` atomically, and delete all but the newest.

        Raises NoSpace, StoreUnavailable.
        """
        ObjectFolder(str(self._folder)).replace(f"{position:012d}{SUFFIX}", pack(encoded))
        for old in self._paths()[KEPT:]:
            old.unlink(missing_ok=True)

    async def newest(self, events: Readable) -> S | None:
        """The newest snapshot of this log; others are skipped with a warning."""
        for path in self._paths():
            try:
                snapshot = unpack(await asyncio.to_thread(path.read_bytes), self._kind)
                await _check(snapshot, events)
            except (Unusable, OSError) as error:
                log.warning("snapshot %s is not used: %s", path, error)
            else:
                return snapshot
        return None

    def _paths(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob(f"*{SUFFIX}"), reverse=True)


async def _check(snapshot: Snapshot, events: Readable) -> None:
    """Raises Unusable where the log has not the event at its position that it chains to."""
    if snapshot.state.run != events.run:
        raise Unusable(f"it is of run {snapshot.state.run}")
    async with contextlib.aclosing(events.read(snapshot.position)) as read:  # type: ignore[type-var]
        last = await anext(read, None)
    if last is None:
        raise Unusable(f"the log ends before its position {snapshot.position}")
    if not snapshot.is_followed_by(last.data):
        raise Unusable(f"the log has another history up to position {snapshot.position}")
