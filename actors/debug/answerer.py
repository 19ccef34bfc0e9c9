"""`Answerer`: replaces engines and graders in a run whose rollouts already exist.

rollout.requested -> rollout.completed + reward.assigned in one append, or rollout.failed with the reason
"""

import logging
from collections.abc import Sequence

from schemas.envelope import Envelope
from schemas.errors import Conflict
from schemas.event import Event
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutRequested
from schemas.subjects import about
from slime_events.core.run.participant import Participant
from storage.follow import Follower
from storage.log import Append, Fence
from storage.payloads import Offload

log = logging.getLogger(__name__)

Answer = RolloutCompleted | RolloutFailed | RewardAssigned


class Answerer:
    """Base class: collects open requests and answers them, with its own name as producer and engine."""

    def __init__(self, worker: Participant, offload: Offload) -> None:
        self.worker, self._offload = worker, offload
        self._open: dict[str, tuple[int, RolloutRequested]] = {}
        self._over = False

    async def run(self) -> None:
        """Answer requests until the run is over. Raises DataError if rollouts are missing or do not fit."""
        async with Follower(self.worker.log) as follower:
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=1.0):
                    self._take(recorded.envelope.event, recorded.position)
                if follower.caught_up and not self._over:
                    await self.submit()
                    await self._answer()

    def observe(self, event: Event) -> None:
        """Process each event of the log, in order."""

    async def submit(self) -> None:
        """Submit the prompts that are due now."""

    async def answers(self, request: RolloutRequested) -> Sequence[Answer]:
        """Return a rollout's samples, the requested sample last, and their rewards; or its failure."""
        raise NotImplementedError

    async def enclosed(self, event: Event) -> Envelope:
        """Move large arrays of an event to the blob store and return its envelope."""
        return self.worker.enclose(await self._offload(event))

    def _take(self, event: Event, position: int) -> None:
        self._over = self.worker.is_over(self._over, event)
        if isinstance(event, RolloutRequested):
            self._open[event.sample] = (position, event)
        elif isinstance(event, RolloutCompleted | RolloutFailed):
            self._open.pop(event.sample, None)
        self.observe(event)

    async def _answer(self) -> None:
        requests, self._open = self._open, {}
        for position, request in requests.values():
            answers = await self.answers(request)
            appends = [Append(await self.enclosed(event), self._fence(event, request, position)) for event in answers]
            try:
                await self.worker.log.append(appends)
            except Conflict:
                log.info("%s already has an answer", request.sample)

    def _fence(self, event: Answer, request: RolloutRequested, position: int) -> Fence:
        """Expect the request as the last event of the requested sample, and no event of any other sample or reward."""
        noun = "reward" if isinstance(event, RewardAssigned) else "rollout"
        is_requested = noun == "rollout" and event.sample == request.sample
        return Fence(about(self.worker.log.run, noun, event.sample), position if is_requested else 0)
