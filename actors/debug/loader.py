"""`Loader`: plays recorded rollouts into a run that has no engines: prompts, responses and rewards come from dumps.

    next step's dump -> prompt.submitted -> (the conductor) -> rollout.requested -> rollout.completed + reward.assigned

What it says are facts of another run, under its own name as producer and engine; everything after that is as ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from schemas.batches import BatchSealed
from schemas.envelope import Envelope
from schemas.errors import Conflict
from schemas.event import Event
from schemas.ids import LOADED
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutRequested
from schemas.subjects import about
from schemas.weights import WeightsPublished
from slime_events.analysis.export.loaded import LoadedStep
from slime_events.core.run.participant import Participant
from storage.follow import Follower
from storage.log import Append, Fence, append_all, once

log = logging.getLogger(__name__)

Load = Callable[[int], LoadedStep]
"""A step's dump. Raises DataError."""


class Loader:
    """steps: of the run. It holds one dump, and what of it was asked for and not answered."""

    def __init__(
        self, worker: Participant, load: Load, offload: Callable[[Event], Awaitable[Event]], *, steps: int
    ) -> None:
        self._worker, self._load, self._offload, self._steps = worker, load, offload, steps
        self._loaded: dict[int, LoadedStep] = {}
        self._groups: dict[str, tuple[int, int]] = {}
        self._asked: dict[str, tuple[int, RolloutRequested]] = {}
        self._next_step, self._submitted = -1, 0
        self._over = False

    async def run(self) -> None:
        """Until the run is over. Raises DataError for a dump that is not there or does not fit."""
        async with Follower(self._worker.log) as follower:
            while not (self._over and follower.caught_up):
                for recorded in await follower.next(wait_s=1.0):
                    self._take(recorded.envelope.event, recorded.position)
                if follower.caught_up and not self._over:
                    await self._submit()
                    await self._answer()

    def _take(self, event: Event, position: int) -> None:
        self._over = self._worker.is_over(self._over, event)
        if isinstance(event, WeightsPublished):
            self._next_step = max(self._next_step, event.version)
        elif isinstance(event, BatchSealed):
            self._next_step = max(self._next_step, event.step + 1)
            self._loaded = {step: loaded for step, loaded in self._loaded.items() if step > event.step}
        elif isinstance(event, PromptSubmitted) and event.dataset == LOADED:
            self._groups[event.group] = (event.source.epoch, event.source.row)
            self._submitted = max(self._submitted, event.source.epoch + 1)
        elif isinstance(event, RolloutRequested):
            self._asked[event.sample] = (position, event)
        elif isinstance(event, RolloutCompleted):
            self._asked.pop(event.sample, None)

    async def _step(self, step: int) -> LoadedStep:
        if step not in self._loaded:
            self._loaded[step] = await asyncio.to_thread(self._load, step)
        return self._loaded[step]

    async def _submit(self) -> None:
        """The prompts of the next step, once all before it is sealed."""
        step = self._next_step
        if step < 0 or step >= self._steps or step < self._submitted:
            return
        prompts = (await self._step(step)).prompts()
        await append_all(self._worker.log, [once(await self._enclosed(prompt)) for prompt in prompts])
        self._submitted = step + 1

    async def _answer(self) -> None:
        asked, self._asked = self._asked, {}
        for position, request in asked.values():
            step, place = self._groups[request.group]
            answers = (await self._step(step)).answers(request, place, self._worker.id)
            said = [Append(await self._enclosed(one), self._fence(one, request, position)) for one in answers]
            try:
                await self._worker.log.append(said)
            except Conflict:
                log.info("%s was answered by another loader", request.sample)

    def _fence(self, event: RolloutCompleted | RewardAssigned, request: RolloutRequested, position: int) -> Fence:
        """Nothing is said of a sample after its request, and of a further one of its rollout nothing at all."""
        noun = "rollout" if isinstance(event, RolloutCompleted) else "reward"
        asked = noun == "rollout" and event.sample == request.sample
        return Fence(about(self._worker.log.run, noun, event.sample), position if asked else 0)

    async def _enclosed(self, event: Event) -> Envelope:
        return self._worker.enclose(await self._offload(event))
