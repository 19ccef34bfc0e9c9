"""`Suspects`: requests that were in progress when an engine crashed, from the log.

    an engine ends by itself             -> worker.lost names the requests that were in progress
    one of them is delivered again       -> a trial: no other suspect of this engine generates meanwhile
    the engine ends during the trial     -> worker.lost names only that request
    two such ends                        -> the request fails with that reason, and no engine gets it again

So the request that crashes engines is found at the second crash, and requests that ran beside it at the first are made.
An end from outside (SIGKILL, SIGTERM: an operator, a machine out of memory) does not count: two of them would otherwise
fail every request in progress.
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from schemas.errors import EngineError, EngineLost, RequestRefused
from schemas.subjects import of_type
from schemas.workers import WorkerLost
from serve_apps.engines.engine import Delta, Engine, GenerateRequest
from serve_apps.rollouts.rollout import Generate
from storage.log import EventLog

MOST_LOST = 2
"""Number of engines that a request may crash before it is refused."""
TRIAL_TOKENS = 8
TRIAL_S = 10.0
"""A trial ends after these tokens or seconds: a request that crashes an engine does so at its first steps."""
_RID = re.compile(r"(.*)-\d+-\d+(\.\d+)?")


class Suspects:
    """The suspects of one engine. `log` is the run's."""

    def __init__(self, log: EventLog) -> None:
        self._log, self._position = log, 0
        self._lost: Counter[str] = Counter()
        self._room = asyncio.Semaphore(1)
        self._tried = ""

    async def read(self) -> None:
        """Read new events about lost engines."""
        async for recorded in self._log.read(self._position + 1, of_type(self._log.run, "worker.lost")):
            self._position = recorded.position
            if isinstance(recorded.envelope.event, WorkerLost):
                self._lost.update(recorded.envelope.event.requests)

    def check(self, sample: str) -> None:
        """Raise RequestRefused for a request that has crashed too many engines."""
        if self._lost[sample] >= MOST_LOST:
            raise RequestRefused(
                f"{self._lost[sample]} engines crashed while {sample} was in progress: no other engine gets it "
                "(see worker.lost in `slime-events tail` for the reasons)"
            )

    def of(self, sample: str, generate: Generate) -> Generate:
        """Return `generate` for a sample. If the sample is a suspect, only one suspect generates at a time."""
        if not self._lost[sample]:
            return generate

        async def tried(request: GenerateRequest) -> AsyncIterator[Delta]:
            async for delta in self._try(sample, generate(request)):
                yield delta

        return tried

    async def _try(self, sample: str, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
        """Run one trial at a time. If the engine fails in one, the next waits until the engine is known to be alive."""
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
        """End the trial of a sample, if one is running: the engine is alive."""
        if self._tried == sample:
            self._tried = ""
            self._room.release()

    def blamed(self, under_way: Sequence[str]) -> tuple[str, ...]:
        """Return the samples that may have crashed the engine. `under_way` has the names of requests at the engine."""
        if self._tried:
            return (self._tried,)
        samples = (match[1] for name in under_way if (match := _RID.fullmatch(name)))
        return tuple(dict.fromkeys(samples))


def loss_of(error: EngineError, engine: Engine, blamed: tuple[str, ...]) -> EngineLost:
    """Return the error of a lost engine, with the requests to blame: none if it was killed from outside."""
    return EngineLost(str(error), () if getattr(engine, "was_killed", False) else blamed)
