"""`EventBlock`: many events at once, for readers that fold them all: checked, chained, and not decoded one by one."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from schemas.codec import WholeEnvelope
from schemas.envelope import Envelope

MANY = 250
"""Events in one array: few enough that the decoded ones stay in the processor's cache until they are used."""


class Part(NamedTuple):
    """Events at consecutive positions from `first` on: in a MessagePack array, as they are stored, or decoded where the
    log has decoded them already.
    """

    first: int
    events: bytes | Sequence[WholeEnvelope] | Sequence[Envelope]


class EventBlock(NamedTuple):
    """The events from position `first` to `last`. parts: all of them in order, encoded ones `MANY` at a time, each made
    when it is asked for. chain: over all events up to `last` (storage/hash_chain.py); before: over all but that.
    """

    first: int
    last: int
    before: bytes
    chain: bytes
    parts: Iterator[Part]


def array_of(count: int, *events: bytes | memoryview) -> bytes:
    """A MessagePack array of `count` encoded events."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *events))


@runtime_checkable
class HasEventBlocks(Protocol):
    """A log that can be read in blocks."""

    def event_blocks(self, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
        """Everything from position `start` on, where the chain so far is `chain`. A block ends at each multiple of
        `every`, or before it where a foreign record lies there; None: wherever that costs least. Raises as `read`, and
        the SchemaErrors of what it leaves encoded come when that is decoded.
        """
