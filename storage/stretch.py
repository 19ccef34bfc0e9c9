"""`Stretch`: many events at once, for those who fold them all: checked, chained, and not decoded one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import NamedTuple, Protocol, runtime_checkable


class Stretch(NamedTuple):
    """Events at [first, last]. records: as they are stored, as one MessagePack array. chain: sha256 over the bytes of
    all events up to `last`, each hashed after the digest before it (32 bytes); before: the same up to `last - 1`.
    """

    first: int
    last: int
    before: bytes
    chain: bytes
    records: bytes


def stretch_of(last: int, before: bytes, chain: bytes, datas: list[bytes]) -> Stretch:
    """The events whose bytes these are, the last at `last`."""
    array = b"\xdd" + len(datas).to_bytes(4, "big")
    return Stretch(last - len(datas) + 1, last, before, chain, b"".join((array, *datas)))


@runtime_checkable
class Stretched(Protocol):
    """A log that gives them."""

    def stretches(self, start: int, chain: bytes, every: int) -> AsyncGenerator[Stretch, None]:
        """Everything there is from position `start` on, where the chain so far is `chain`. One ends at each multiple of
        `every`. Raises as `read`, but for what is no event: the bytes are not looked at.
        """
