"""`EarlyRequests`: generations that an engine begins while their requests are still being stored.

    a gateway sends a request directly, and appends it     -> the engine generates, and keeps the tokens
    the log delivers the same request, identical in bytes  -> the engine continues with these tokens, as usual

An early request has no effect until the log has it: no event is made of it, and no client sees a token. If the log does
not deliver it, it is dropped after EARLY_S without a trace. So a forged message costs only the engine's time, for at
most EARLY_MOST generations at once.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from schemas.doc import doc
from schemas.errors import AccessDenied
from schemas.event import Purpose
from schemas.rollouts import RolloutRequested
from serve_apps.engines.engine import Delta
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.rollouts.rollout import generate_request
from slime_events.core.sessions.turn_paths import TurnPaths
from storage.cancellation import end_all
from storage.log import EventLog, Recorded

EARLY_MOST = 16
"""Maximum number of early generations in progress at one engine."""
EARLY_S = 2.0
"""Seconds until the log has to deliver the request."""
log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class EarlyRollout:
    """An early generation."""

    recorded: Annotated[Recorded, doc("Its request as the gateway sent it.")]
    _deltas: AsyncGenerator[Delta, None]
    begun: Annotated[float, doc("Start by `time.perf_counter` [s].")] = field(default_factory=time.perf_counter)
    at: Annotated[int, doc("Start [UTC nanoseconds].")] = field(default_factory=time.time_ns)
    _first: asyncio.Task[Delta | None] = field(init=False)

    def __post_init__(self) -> None:
        self._first = asyncio.create_task(self._begin())

    async def _begin(self) -> Delta | None:
        return await anext(self._deltas, None)

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        """Yield all deltas, from the first on."""
        try:
            first = await self._first
            if first is None:
                return
            yield first
            async for delta in self._deltas:
                yield delta
        finally:
            await self.end()

    async def end(self) -> None:
        """End the generation: it is no longer needed."""
        await end_all(self._first)
        await self._deltas.aclose()


class EarlyRequests:
    """The early requests of one engine.

    `may_begin` says whether the worker may begin a request, next to a number of other early ones.
    """

    def __init__(
        self,
        log: EventLog,
        paths: TurnPaths,
        weights: EngineWeights,
        may_begin: Callable[[RolloutRequested, int], bool],
    ) -> None:
        self._log, self._paths, self._weights, self._may_begin = log, paths, weights, may_begin
        self._open: dict[str, EarlyRollout] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening_as(self, name: str) -> AsyncIterator[None]:
        """Within the block, begin requests that are sent to this name. Requests not taken end with the block."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._log.listen(name, self._hear, early=True))
            except AccessDenied as error:
                log.warning("%s: the engine begins an agent's request only when the log has it", error)
            try:
                yield
            finally:
                left, self._open = list(self._open.values()), {}
                await end_all(*self._tasks)
                await asyncio.gather(*(early.end() for early in left))

    def _hear(self, recorded: Recorded) -> None:
        request = recorded.envelope.event
        if not isinstance(request, RolloutRequested) or request.purpose is not Purpose.CALL or request.attempt:
            return
        open_ = len(self._open)
        may_begin = open_ < EARLY_MOST and self._may_begin(request, open_)
        if request.sample in self._open or not may_begin or not self._weights.may_begin(request):
            return
        early = self._open[request.sample] = EarlyRollout(recorded, self._make(request))
        task = asyncio.create_task(self._drop(request.sample, early), name=f"early {request.sample}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, request: RolloutRequested) -> AsyncGenerator[Delta, None]:
        prompt = await self._paths.prompt(request.prompt, request.after)
        rid = f"{request.sample}-{request.attempt}-0"
        engine_request = generate_request(request, rid, prompt, np.zeros(0, np.int32))
        claim = await self._weights.claim(request)
        try:
            deltas = self._weights.generate(claim, engine_request)
            async with contextlib.aclosing(deltas):  # type: ignore[type-var]
                async for delta in deltas:
                    yield delta
        finally:
            self._weights.unclaim(claim)

    async def _drop(self, sample: str, early: EarlyRollout) -> None:
        await asyncio.sleep(EARLY_S)
        if self._open.get(sample) is early:
            del self._open[sample]
            await early.end()

    def take(self, recorded: Recorded) -> EarlyRollout | None:
        """Return the early generation of a request that the log has delivered. The caller ends it.

        Return None if there is none, or if the early request differs.
        """
        event = recorded.envelope.event
        early = self._open.get(event.entity())
        if early is None or early.recorded.data != recorded.data:
            return None  # of another request: `_drop` ends it
        del self._open[event.entity()]
        return early
