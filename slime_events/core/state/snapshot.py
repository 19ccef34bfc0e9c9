"""`Snapshot`: a state put away with its place in the log, so that a fold need not begin at position 1.

Only a cache: whoever has none, or none that is right, folds from the beginning and comes to the same state.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple, TypeVar

import msgspec
import zstandard

from slime_events.core.state.run import FOLD, RunState

MAGIC = b"slime-events snapshot\n"
LEVEL = 3

T = TypeVar("T", bound=msgspec.Struct)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """fold: the rules that folded it. before: the chain up to the event before the last (hex), which with that event's
    bytes gives the state's own: so one event of a log shows whether the snapshot is of its history.
    """

    fold: int
    before: str
    state: RunState

    @property
    def position(self) -> int:
        """Of the last event folded in."""
        return self.state.events

    def is_followed_by(self, last: bytes) -> bool:
        """Whether the chain is right, given the record at `position`."""
        return hashlib.sha256(bytes.fromhex(self.before) + last).hexdigest() == self.state.chain


class Unusable(NamedTuple):
    """Why there is no snapshot in some bytes."""

    reason: str


def take(state: RunState, before: str) -> bytes:
    """The state as it is now, as MessagePack. It may change afterwards."""
    return msgspec.msgpack.encode(Snapshot(fold=FOLD, before=before, state=state))


def pack(taken: bytes) -> bytes:
    """What `take` gave as a file: magic, sha256 of the rest, zstd."""
    body = zstandard.ZstdCompressor(level=LEVEL).compress(taken)
    return MAGIC + hashlib.sha256(body).digest() + body


def unpack(data: bytes, kind: type[T] = Snapshot) -> T | Unusable:  # type: ignore[assignment]
    """The snapshot (or what else is packed so and has a `fold`) in a file's bytes, if it is whole and of this version's
    rules.
    """
    head = len(MAGIC) + hashlib.sha256().digest_size
    digest, body = data[len(MAGIC) : head], data[head:]
    if not data.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
        return Unusable("it is damaged")
    plain = zstandard.ZstdDecompressor().decompress(body)
    fold = msgspec.msgpack.decode(plain, type=_Fold).fold
    if fold != FOLD:
        return Unusable(f"it was folded by rules {fold}, this version folds by rules {FOLD}")
    try:
        return msgspec.msgpack.decode(plain, type=kind)
    except msgspec.DecodeError as error:
        return Unusable(f"it holds another state than its rules say: {error}")


class _Fold(msgspec.Struct, frozen=True):
    """Readable in whatever else another version has put there."""

    fold: int


def low_water(state: RunState) -> int:
    """The lowest position that a group without a verdict, or an evaluation without a result, still needs."""
    decided = {*state.accepted, *(group for sealed in state.sealed.values() for group in sealed.groups)}
    open_ = (group.position for name, group in state.groups.items() if name not in decided)
    return min(open_, default=state.events + 1)


def training_start(state: RunState, version: int) -> int:
    """The lowest position that a trainer needs which goes on from weights `version`: of the prompts in the batches
    since, and in groups that no batch has yet. 1 where the state has forgotten (an older version than the newest
    checkpoint).
    """
    if version < min(state.batch_starts, default=state.next_step):
        return 1
    batches = (start for step, start in state.batch_starts.items() if step >= version)
    open_ = (group.position for group in state.groups.values())
    return min((*batches, *open_), default=state.events + 1)
