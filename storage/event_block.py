"""`EventBlock`: many events at once, for readers that fold them all: checked, chained, and not decoded one by one."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

MANY = 250
"""Events in one array: few enough that the decoded ones stay in the processor's cache until they are used."""


class EventBlock(NamedTuple):
    """Events at [first, last]. arrays: as they are stored, in MessagePack arrays of up to `MANY`, each made when it is
    asked for. chain: over all events up to `last` (storage/hash_chain.py); before: the same up to `last - 1`.
    """

    first: int
    last: int
    before: bytes
    chain: bytes
    arrays: Iterator[bytes]


def array_of(count: int, *events: bytes | memoryview) -> bytes:
    """A MessagePack array of `count` encoded events."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *events))


def arrays_of(datas: Sequence[bytes]) -> Iterator[bytes]:
    """The encoded events, `MANY` at a time."""
    some = (datas[begin : begin + MANY] for begin in range(0, len(datas), MANY))
    return (array_of(len(part), *part) for part in some)


@runtime_checkable
class HasEventBlocks(Protocol):
    """A log that can be read in blocks."""

    def event_blocks(self, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
        """Everything from position `start` on, where the chain so far is `chain`. A block ends at each multiple of
        `every`; None: wherever that costs least. Raises as `read`, except SchemaError: nothing is decoded.
        """
