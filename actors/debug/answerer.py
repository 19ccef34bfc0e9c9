"""`Answerer`: takes the place of engines and graders in a run whose rollouts are there already.

rollout.requested -> rollout.completed + reward.assigned, one append; or rollout.failed with the reason
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
    """It holds the requests that are not answered, and answers under its own name as producer and engine."""

    def __init__(self, worker: Participant, offload: Offload) -> None:
        self.worker, self._offload = worker, offload
        self._asked: dict[str, tuple[int, RolloutRequested]] = {}
        self._over = False

    async def run(self) -> None:
        """Until the run is over. Raises DataError for rollouts that are not there or do not fit."""
        async with Follower(self.worker.log) as follower:
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=1.0):
                    self._take(recorded.envelope.event, recorded.position)
                if follower.caught_up and not self._over:
                    await self.submit()
                    await self._answer()

    def observe(self, event: Event) -> None:
        """Take in each event of the log, in order."""

    async def submit(self) -> None:
        """Prompts that are due now."""

    async def answers(self, request: RolloutRequested) -> Sequence[Answer]:
        """The samples of a rollout, the one that was asked for last, and their rewards; or its failure."""
        raise NotImplementedError

    async def enclosed(self, event: Event) -> Envelope:
        """The event, large arrays in the blob store."""
        return self.worker.enclose(await self._offload(event))

    def _take(self, event: Event, position: int) -> None:
        self._over = self.worker.is_over(self._over, event)
        if isinstance(event, RolloutRequested):
            self._asked[event.sample] = (position, event)
        elif isinstance(event, RolloutCompleted | RolloutFailed):
            self._asked.pop(event.sample, None)
        self.observe(event)

    async def _answer(self) -> None:
        asked, self._asked = self._asked, {}
        for position, request in asked.values():
            answers = await self.answers(request)
            appends = [Append(await self.enclosed(one), self._fence(one, request, position)) for one in answers]
            try:
                await self.worker.log.append(appends)
            except Conflict:
                log.info("%s was answered by another one", request.sample)

    def _fence(self, event: Answer, request: RolloutRequested, position: int) -> Fence:
        """A sample has no event after its request; a further sample of its rollout has none at all."""
        noun = "reward" if isinstance(event, RewardAssigned) else "rollout"
        asked = noun == "rollout" and event.sample == request.sample
        return Fence(about(self.worker.log.run, noun, event.sample), position if asked else 0)
