"""`EventBlock`: many events at once, checked and chained, for readers that fold all of them."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Annotated, NamedTuple, Protocol, runtime_checkable

from schemas.codec import WholeEnvelope
from schemas.doc import doc
from schemas.envelope import Envelope

MANY = 250
"""Events in one array: few enough for the decoded events to stay in the processor's cache."""


class Part(NamedTuple):
    """Events at consecutive positions."""

    first: Annotated[int, doc("Position of the first event.")]
    events: Annotated[
        bytes | Sequence[WholeEnvelope] | Sequence[Envelope],
        doc("MessagePack array of stored events, or decoded events if the log has decoded them already."),
    ]


class EventBlock(NamedTuple):
    """The events of a range of positions."""

    first: Annotated[int, doc("Position of the first event.")]
    last: Annotated[int, doc("Position of the last event.")]
    before: Annotated[bytes, doc("Hash chain over all events before `last`.")]
    chain: Annotated[bytes, doc("Hash chain over all events up to `last` (storage/hash_chain.py).")]
    parts: Annotated[Iterator[Part], doc("The events in order, made lazily; encoded events `MANY` at a time.")]


def array_of(count: int, *events: bytes | memoryview) -> bytes:
    """Return a MessagePack array of `count` encoded events."""
    return b"".join((b"\xdd", count.to_bytes(4, "big"), *events))


@runtime_checkable
class HasEventBlocks(Protocol):
    """A log that can be read in blocks."""

    def event_blocks(self, start: int, chain: bytes, every: int | None) -> AsyncGenerator[EventBlock, None]:
        """Yield everything from position `start` on. chain: hash chain of all events before.

        A block ends at each multiple of `every`, or before it if a foreign record is there; None: at any position.
        Raises as `read`; for events that stay encoded, SchemaErrors occur when they are decoded.
        """
