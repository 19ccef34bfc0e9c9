"""`Answers`: reads the results of calls from the log, so that every gateway can return them, any number of times."""

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from schemas.commands import CommandDone, CommandGiven
from schemas.doc import doc
from schemas.errors import RunNotFound, StorageError
from schemas.event import Event
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutRequested
from schemas.subjects import of_type
from serve_apps.http.tinker.names import Samples
from serve_apps.rollouts.calls import Call, OpenCalls
from slime_events.core.run.participant import Participant, subjects_of
from slime_events.core.tokens.trajectory import Fetch, Trajectory
from slime_events.core.training.datums import Datum
from storage.follow import Follower
from storage.log import Append, Recorded

ENDS = (CommandDone, RolloutCompleted, RolloutFailed)
PROMPT_LOG_PROBS = "input_token_logprobs"
"""SGLang's name of the prompt's log-probs in a generation's metadata."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed call."""

    message: str
    is_users: Annotated[bool, doc("the request itself cannot be done; otherwise the server failed")] = False


@dataclass(frozen=True, slots=True)
class FinishedSamples:
    """Finished rollouts of a call of `sample`."""

    samples: list[Trajectory]
    prompt_log_probs: Annotated[npt.NDArray[np.float32] | None, doc("float32 [prompt]; None if not requested")]


class SampledSequences:
    """Finds the sampled sequence of a datum, for `lineage`, among those that this gateway returned.

    A client that names them itself (`Datum.with_provenance`) does not need it.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._by_digest: dict[bytes, str] = {}
        self._most = most

    def add(self, sequence: Trajectory, fetch: Fetch) -> None:
        self._by_digest[_digest(np.concatenate([fetch(sequence.prompt), sequence.tokens]))] = sequence.sample
        if len(self._by_digest) > self._most:
            del self._by_digest[next(iter(self._by_digest))]

    def of(self, datums: Sequence[Datum]) -> list[str]:
        """Return the sequences that equal whole datums: a datum's tokens and its last target."""
        digests = (_digest(np.append(datum.tokens, datum.targets[-1:])) for datum in datums)
        return [self._by_digest[digest] for digest in digests if digest in self._by_digest]


def _digest(tokens: npt.NDArray[np.int32]) -> bytes:
    return hashlib.sha256(tokens.astype("<i4").tobytes()).digest()


class Answers:
    """Waits for results. worker: participant of the gateway. attempts: most attempts of one generation.

    The other methods return early only while `follow` runs.
    """

    def __init__(self, worker: Participant, fetch: Fetch, *, attempts: int) -> None:
        self._worker, self.fetch = worker, fetch
        self._calls = OpenCalls(worker, self._append, fetch, attempts)
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.sequences = SampledSequences()
        self.is_over = False

    async def follow(self) -> None:
        """Read ends of calls until the run is over, and wake the methods that wait for them."""
        log = self._worker.log
        async with Follower(log, await log.position() + 1, subjects_of(log.run, ENDS)) as follower:
            while not self.is_over:
                for recorded in await follower.next(wait_s=1.0):
                    event = recorded.envelope.event
                    self.is_over = self._worker.is_over(self.is_over, event)
                    for waiting in self._waiting.get(event.entity(), ()):
                        waiting.set()

    async def command(self, name: str, wait_s: float) -> tuple[CommandGiven, CommandDone] | None:
        """Return a command and its result; None after `wait_s` seconds without one. Raises RunNotFound."""
        command = await self.find(name)
        if command is None:
            raise RunNotFound(f"request_id {name!r}: this run has no such call")
        async with self._news([name]) as news:
            if (done := await self._done(name)) is None:
                await _wait(news, wait_s)
                done = await self._done(name)
        return None if done is None else (command, done)

    async def find(self, name: str) -> CommandGiven | None:
        """Return a command without its result."""
        event = await self._last("command.given", name)
        return event if isinstance(event, CommandGiven) else None

    async def _done(self, name: str) -> CommandDone | None:
        event = await self._last("command.done", name)
        return event if isinstance(event, CommandDone) else None

    async def samples(self, request: Samples, wait_s: float) -> FinishedSamples | Failed | None:
        """Return the rollouts of a call, once all have ended; None after `wait_s` seconds.

        A rollout whose engine failed is requested again. Raises RunNotFound.
        """
        end = asyncio.get_running_loop().time() + wait_s
        calls = [await self._call(name) for name in request.ids]
        while True:
            async with self._news(request.ids) as news:
                results = [await self._result(call) for call in calls]
                failed = next((result for result in results if isinstance(result, Failed)), None)
                if failed is not None:
                    return failed
                ends = [result for result in results if isinstance(result, RolloutCompleted)]
                if len(ends) == len(calls):
                    for call in calls:
                        self.sequences.add(call.trajectory, self.fetch)
                    scores = _prompt_log_probs(ends[0].meta, calls[0].request)
                    return FinishedSamples([call.trajectory for call in calls], scores)
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    return None
                await _wait(news, left)

    async def saved(self, path: str) -> int | None:
        """Return the version that was last saved under a path of the protocol; None if there is none."""
        log, version = self._worker.log, None
        async for recorded in log.read(1, of_type(log.run, "command.done")):
            event = recorded.envelope.event
            if isinstance(event, CommandDone) and event.path == path:
                version = event.version
        return version

    async def has_checkpoint(self, version: int) -> bool:
        """Return whether the optimizer's state was saved with a version."""
        return await self._last("checkpoint.saved", str(version)) is not None

    async def _call(self, name: str) -> Call:
        """Return the call of a sample, not read yet. Raises RunNotFound."""
        request = await self._last("rollout.requested", name)
        if not isinstance(request, RolloutRequested):
            raise RunNotFound(f"sample {name}: this run has no such call")
        return Call(request, Trajectory(name, request.prompt))

    async def _result(self, call: Call) -> RolloutCompleted | Failed | None:
        """Read a call from the log, and return its end or failure; None while an attempt is in progress."""
        if not call.ended.done():
            await self._calls.read_on(call)
            if call.retry is not None:
                await call.retry
        if not call.ended.done():
            return None
        if isinstance(error := call.ended.exception(), StorageError):
            raise error
        if (failed := call.failed) is not None:
            return Failed(f"{call.request.sample}: {failed.message}", failed.kind is not FailureKind.ENGINE)
        return call.ended.result()

    async def _append(self, append: Append) -> None:
        await self._worker.log.append([append])

    async def _last(self, event_type: str, name: str) -> Event | None:
        log = self._worker.log
        recorded: Recorded | None = await log.last(of_type(log.run, event_type, name))
        return None if recorded is None else recorded.envelope.event

    @contextlib.asynccontextmanager
    async def _news(self, entities: list[str]) -> AsyncIterator[asyncio.Event]:
        """Yield an asyncio event that the next end of one of these entities sets."""
        news = asyncio.Event()
        for entity in entities:
            self._waiting[entity].add(news)
        try:
            yield news
        finally:
            for entity in entities:
                self._waiting[entity].discard(news)
                if not self._waiting[entity]:
                    del self._waiting[entity]


def _prompt_log_probs(meta: dict[str, Any], request: RolloutRequested) -> npt.NDArray[np.float32] | None:
    """Return the prompt's log-probs, NaN for the first token. SGLang reports [log-prob, id, text] for each token."""
    entries = meta.get(PROMPT_LOG_PROBS)
    if entries is None or not request.payload:
        return None
    values = [np.nan if log_prob is None else float(log_prob) for log_prob, *_ in entries[: request.prompt.n]]
    return np.array(values + [np.nan] * (request.prompt.n - len(values)), np.float32)


async def _wait(news: asyncio.Event, wait_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await news.wait()
