"""`StepBoundary`: which rollouts rest, because a batch that suspends was sealed after they were asked for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from schemas.batches import BatchSealed
from schemas.event import Purpose
from schemas.rollouts import RolloutRequested
from schemas.subjects import of_type
from storage.follow import Follower
from storage.log import EventLog, Recorded


class StepBoundary:
    """Where in the log the newest batch lies that suspends, as far as it has been read."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._position = 0

    async def follow(self, moved: Callable[[], Awaitable[object]]) -> None:
        """Read on for ever, and call `moved` after each look that found something new.

        From the newest batch on: a run has many, and what an older one should have stopped may as well go on.
        """
        subject = of_type(self._log.run, "batch.sealed")
        newest = await self._log.last(subject)
        async with Follower(self._log, newest.position if newest else 1, subject) as follower:
            while True:
                before = self._position
                for recorded in await follower.next(wait_s=60.0):
                    if isinstance(recorded.envelope.event, BatchSealed) and recorded.envelope.event.suspends:
                        self._position = recorded.position
                if self._position > before:
                    await moved()

    def rests(self, requested: Recorded) -> bool:
        """Whether the rollout that this rollout.requested asks for is to rest. Evaluations never are."""
        request = requested.envelope.event
        assert isinstance(request, RolloutRequested)
        return request.purpose is Purpose.TRAIN and requested.position < self._position
