"""`Suspects`: the requests that were under way when an engine ended by itself, from the log.

    an engine ends, and nobody outside ended it -> worker.lost names the requests that were under way
    one of them is delivered again              -> it is tried: no other suspect of this engine generates meanwhile
    the engine ends during the trial            -> worker.lost names that request alone
    two such ends                               -> the request is failed with that reason, and no engine gets it again

So the request that ends engines is found at its second one, and those that ran beside it at the first are made. What
ends a process from outside (SIGKILL, SIGTERM: an operator, a machine that runs out of memory) counts for nothing: every
request would be failed that was under way at two such ends.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from schemas.errors import EngineError, EngineLost, RequestRefused
from schemas.subjects import of_type
from schemas.workers import WorkerLost
from serve_apps.engine.engine import Delta, Engine, GenerateRequest
from serve_apps.rollout import Generate
from storage.log import EventLog

MOST_LOST = 2
"""Engines that a request may end."""
TRIAL_TOKENS = 8
TRIAL_S = 10.0
"""A trial is over after so many tokens, or seconds: what ends an engine does so at its first steps."""
_RID = re.compile(r"(.*)-\d+-\d+(\.\d+)?")


class Suspects:
    """Of one engine. log: the run's."""

    def __init__(self, log: EventLog) -> None:
        self._log, self._position = log, 0
        self._lost: Counter[str] = Counter()
        self._room = asyncio.Semaphore(1)
        self._tried = ""

    async def read(self) -> None:
        """Take in what the log has of lost engines by now."""
        async for recorded in self._log.read(self._position + 1, of_type(self._log.run, "worker.lost")):
            self._position = recorded.position
            if isinstance(recorded.envelope.event, WorkerLost):
                self._lost.update(recorded.envelope.event.requests)

    def check(self, sample: str) -> None:
        """Raise RequestRefused for a request that has ended too many engines."""
        if self._lost[sample] >= MOST_LOST:
            raise RequestRefused(
                f"{self._lost[sample]} engines ended while {sample} was under way: no other one gets it "
                "(the reasons are in worker.lost: `slime-events tail`)"
            )

    def of(self, sample: str, generate: Generate) -> Generate:
        """`generate` for a sample: tried alone among suspects if it is one."""
        if not self._lost[sample]:
            return generate

        async def tried(request: GenerateRequest) -> AsyncIterator[Delta]:
            async for delta in self._try(sample, generate(request)):
                yield delta

        return tried

    async def _try(self, sample: str, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        """One trial after the other. Where the engine fails in one, no other begins before it is known to be alive."""
        await self._room.acquire()
        self._tried, tokens, failed = sample, 0, False
        limit = asyncio.get_running_loop().call_later(TRIAL_S, self.acquit, sample)
        try:
            async with contextlib.aclosing(deltas):  # type: ignore[type-var]
                async for delta in deltas:
                    yield delta
                    tokens += len(delta.tokens)
                    if tokens >= TRIAL_TOKENS:
                        self.acquit(sample)
        except EngineError:
            failed = True
            raise
        finally:
            limit.cancel()
            if not failed:
                self.acquit(sample)

    def acquit(self, sample: str) -> None:
        """End the trial of a sample, if it is on: the engine is alive."""
        if self._tried == sample:
            self._tried = ""
            self._room.release()

    def blamed(self, under_way: Sequence[str]) -> tuple[str, ...]:
        """The samples that may have ended the engine. under_way: the names of requests at the engine."""
        if self._tried:
            return (self._tried,)
        samples = (match[1] for name in under_way if (match := _RID.fullmatch(name)))
        return tuple(dict.fromkeys(samples))


def loss_of(error: EngineError, engine: Engine, blamed: tuple[str, ...]) -> EngineLost:
    """The error of an engine that is gone, with the requests to blame; nobody where it was ended from outside."""
    return EngineLost(str(error), () if getattr(engine, "was_killed", False) else blamed)
