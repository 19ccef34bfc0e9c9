"""`append_all`: many events in as few atomic appends as the log's limit allows."""

from __future__ import annotations

from collections.abc import Sequence

from storage.log import MAX_BATCH, Append, EventLog


async def append_all(log: EventLog, appends: Sequence[Append]) -> list[int]:
    """Append in order, each piece atomic by itself. For events that mean nothing to each other's neighbours.

    A failure leaves the pieces before it stored; a retry of the whole list goes on behind them, since events have ids.
    """
    positions: list[int] = []
    for start in range(0, len(appends), MAX_BATCH):
        positions += await log.append(appends[start : start + MAX_BATCH])
    return positions
