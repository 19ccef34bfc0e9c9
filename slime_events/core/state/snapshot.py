"""`Snapshot`: a state stored with its position, and `Snapshots`: a folder of the newest snapshots of a run.

Snapshots are only a cache: without a valid one a process folds the log from position 1 and gets the same state.
"""

import asyncio
import contextlib
import hashlib
import logging
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import msgspec
import zstandard

from schemas.doc import doc
from slime_events.core.state.run import FOLD, RunState
from storage.compression import decompress
from storage.log import Readable
from storage.object_store import ObjectFolder

log = logging.getLogger(__name__)

KEPT = 2
"""Snapshots that are kept: the newest, and another in case the newest is damaged."""
SUFFIX = ".snapshot"
MAGIC = b"slime-events snapshot\n"
LEVEL = 3
T = TypeVar("T", bound=msgspec.Struct)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state with what verifies it against a log.

    `before` and the bytes of the last event give the state's own chain, so a single event of a log shows whether the
    snapshot belongs to its history.
    """

    fold: Annotated[int, doc("version of the rules that folded it")]
    before: Annotated[str, doc("chain up to the last but one event, hex")]
    state: RunState

    @property
    def position(self) -> int:
        """Position of the last event folded in."""
        return self.state.position

    def is_followed_by(self, last: bytes) -> bool:
        """Return whether the record at `position` continues the chain."""
        return hashlib.sha256(bytes.fromhex(self.before) + last).hexdigest() == self.state.chain


class Unusable(Exception):
    """A file has no usable snapshot; the message says why."""


def encode_snapshot(state: RunState, before: str) -> bytes:
    """Return the state as MessagePack; later changes of the state do not affect it."""
    return msgspec.msgpack.encode(Snapshot(fold=FOLD, before=before, state=state))


def pack(encoded: bytes) -> bytes:
    """Return the file of an encoded snapshot: magic, sha256 of the rest, zstd."""
    body = zstandard.ZstdCompressor(level=LEVEL).compress(encoded)
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes, kind: type[T]) -> T:
    """Return a snapshot, or another packed struct with a `fold`. Raises Unusable if it is damaged or of other rules."""
    head = len(MAGIC) + hashlib.sha256().digest_size
    digest, body = data[len(MAGIC) : head], data[head:]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        raise Unusable("it is damaged")
    try:
        plain = decompress(body)
        fold = msgspec.msgpack.decode(plain, type=_Fold).fold
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise Unusable(f"it has no state: {error}") from error
    if fold != FOLD:
        raise Unusable(f"its rules have version {fold}, and this release has version {FOLD}")
    try:
        return msgspec.msgpack.decode(plain, type=kind)
    except msgspec.DecodeError as error:
        raise Unusable(f"its state does not match its rules: {error}") from error


class _Fold(msgspec.Struct, frozen=True):
    """The part of a snapshot that every version can read."""

    fold: int


def low_water(state: RunState) -> int:
    """Return a position at or before the lowest that an undecided group or an unfinished evaluation needs.

    It may be lower because a state counts events.
    """
    decided = {*state.accepted, *(group for sealed in state.sealed.values() for group in sealed.groups)}
    open_ = (group.position for name, group in state.groups.items() if name not in decided)
    return min(open_, default=state.position + 1)


def training_start(state: RunState, version: int) -> int:
    """Return the lowest position that a trainer needs to continue from weights `version`.

    It needs the prompts of later batches and of groups without a batch. The result is 1 for versions older than the
    newest checkpoint, which the state does not have.
    """
    if version < min(state.batch_starts, default=state.next_step):
        return 1
    batches = (start for step, start in state.batch_starts.items() if step >= version)
    open_ = (group.position for group in state.groups.values())
    return min((*batches, *open_), default=state.position + 1)


S = TypeVar("S", bound=Snapshot)


class Snapshots(Generic[S]):
    """Files `<folder>/<position, 12 digits>.snapshot`. kind: type of their content."""

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
        """Return the newest snapshot of this log; invalid ones are skipped with a warning."""
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
        """Return the files, newest first."""
        return sorted(self._folder.glob(f"*{SUFFIX}"), reverse=True)


async def _check(snapshot: Snapshot, events: Readable) -> None:
    """Raise Unusable unless the log has the snapshot's last event at its position."""
    if snapshot.state.run != events.run:
        raise Unusable(f"it belongs to run {snapshot.state.run}")
    async with contextlib.aclosing(events.read(snapshot.position)) as read:  # type: ignore[type-var]
        last = await anext(read, None)
    if last is None:
        raise Unusable(f"the log ends before its position {snapshot.position}")
    if not snapshot.is_followed_by(last.data):
        raise Unusable(f"the log has a different history up to position {snapshot.position}")
