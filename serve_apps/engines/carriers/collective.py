"""`Collective`: versions that the trainer broadcasts to a group of engines (`schemas/transfers.py`).

An engine says in the log that it waits for a version, and the trainer begins an epoch in which it is a member. SGLang
then receives the tensors itself (`serve_apps/engines/received_weights.py`).
"""

from __future__ import annotations

import asyncio

from schemas.errors import DeadlineExceeded
from schemas.subjects import of_type
from schemas.transfers import TransferBegun, TransferJoined
from schemas.weights import WeightsCarrier, WeightsPublished
from serve_apps.engines.engine import Receiver
from slime_events.core.run.participant import Participant

BEGIN_S = 20.0
"""How long an engine waits for an epoch. Until then it generates with the version that it has."""


class Collective:
    """See `LiveCarrier`."""

    def __init__(self, worker: Participant, engine: Receiver) -> None:
        self._worker, self._engine = worker, engine
        self._newest = -1

    def carries(self, published: WeightsPublished) -> bool:
        return published.carrier is WeightsCarrier.COLLECTIVE and published.version > self._newest

    async def prepare(self, published: WeightsPublished) -> TransferBegun:
        self._newest, engine = published.version, self._worker.id
        ranks, backend = self._engine.group_ranks, self._engine.group_backend
        joined = TransferJoined(version=published.version, engine=engine, ranks=ranks, backend=backend)
        log = self._worker.log
        try:
            async with asyncio.timeout(BEGIN_S):
                [position] = await self._worker.append([joined])
                async for recorded in log.read(position, of_type(log.run, "transfer.begun"), follow=True):
                    begun = recorded.envelope.event
                    if isinstance(begun, TransferBegun) and engine in begun.members:
                        return begun
        except TimeoutError:
            pass
        raise DeadlineExceeded(f"the trainer has not begun to send it within {BEGIN_S:.0f} s")
