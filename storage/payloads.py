"""Move large arrays of events to the blob store before an append, and fetch them after a read."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import numpy.typing as npt

from schemas.arrays import INLINE_LIMIT, Array, BlobRef, unpack
from schemas.event import Event
from storage.blobs import BlobStore

Offload = Callable[[Event], Awaitable[Event]]
"""Moves an event's large arrays to the blob store, and returns the event without them."""
StructT = TypeVar("StructT", bound=msgspec.Struct)


def offload(event: StructT, blobs: BlobStore, limit: int = INLINE_LIMIT) -> StructT:
    """Return `event` with every array above `limit` bytes, at any depth, moved to a blob; itself if there is none.

    Call it before the append, so that no event names a missing blob. Raises NoSpace, StoreUnavailable.
    """
    changes = {}
    for name in event.__struct_fields__:
        old = getattr(event, name)
        new = _offload_value(old, blobs, limit)
        if new is not old:
            changes[name] = new
    return msgspec.structs.replace(event, **changes) if changes else event


def _offload_value(value: object, blobs: BlobStore, limit: int) -> Any:
    if isinstance(value, Array):
        if len(value.data) <= limit:
            return value
        return Array(dtype=value.dtype, n=value.n, blob=blobs.put(value.data))
    if isinstance(value, msgspec.Struct):
        return offload(value, blobs, limit)
    if isinstance(value, tuple) and any(isinstance(item, msgspec.Struct) for item in value):
        new = tuple(_offload_value(item, blobs, limit) for item in value)
        return new if any(a is not b for a, b in zip(new, value, strict=True)) else value
    return value


def needs_offload(value: object, limit: int = INLINE_LIMIT) -> bool:
    """Return whether `offload` would move an array."""
    if isinstance(value, Array):
        return len(value.data) > limit
    if isinstance(value, msgspec.Struct):
        return any(needs_offload(getattr(value, name), limit) for name in _fields_with_arrays(type(value)))
    return isinstance(value, tuple) and any(needs_offload(item, limit) for item in value)


@functools.cache
def _fields_with_arrays(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields whose type may hold an array: most events have none."""
    hints = get_type_hints(struct)
    return tuple(name for name in struct.__struct_fields__ if _may_hold_array(hints[name]))


def _may_hold_array(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return issubclass(hint, Array) or bool(_fields_with_arrays(hint))
    return any(map(_may_hold_array, get_args(hint)))


def blob_refs(value: object) -> Iterator[BlobRef]:
    """Yield the blobs that an event names, at any depth."""
    if isinstance(value, Array):
        if value.blob is not None:
            yield value.blob
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from blob_refs(getattr(value, name))
    elif isinstance(value, tuple):
        for item in value:
            yield from blob_refs(item)


def fetch(array: Array, blobs: BlobStore) -> npt.NDArray[Any]:
    """Return the numbers of an array [n], inline or from a blob. Raises BlobMissing, BlobDamaged, DamagedEvent."""
    return unpack(array) if array.blob is None else unpack(array, blobs.get(array.blob))


async def offload_async(event: StructT, blobs: BlobStore, limit: int = INLINE_LIMIT) -> StructT:
    """Run `offload` in a thread, if there is an array to move."""
    return await asyncio.to_thread(offload, event, blobs, limit) if needs_offload(event, limit) else event
