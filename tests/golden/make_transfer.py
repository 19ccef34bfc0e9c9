"""A weight version that one engine receives from the trainer, for the golden log."""

from __future__ import annotations

from collections.abc import Iterator

from schemas.event import Event
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined, TransferOutcome


def transfer() -> Iterator[Event]:
    """An engine joins, and is the only member of an epoch."""
    yield TransferJoined(version=0, engine="engine-1", ranks=2)
    yield TransferBegun(epoch=1, version=0, address="10.0.0.1", port=29500, members={"engine-1": 1}, world=3)
    yield TransferEnded(epoch=1, outcome=TransferOutcome.SENT, seconds=0.25)
