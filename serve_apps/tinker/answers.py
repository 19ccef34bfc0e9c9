"""`Answers`: what became of a call, from the log alone: whoever asks, at whichever gateway, as often as he likes."""

import asyncio
import contextlib
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.commands import CommandDone, CommandGiven
from schemas.errors import RunNotFound
from schemas.rollouts import FailureKind, RolloutCompleted, RolloutFailed, RolloutProgressed, RolloutRequested
from schemas.subjects import about, of_type
from serve_apps.tinker.names import Samples
from slime_events.core.datums import Datum
from slime_events.core.run.participant import Participant, subjects_of
from slime_events.core.trajectory import Fetch, Trajectory
from storage.follow import Follower
from storage.log import Append, Recorded

ENDS = (CommandDone, RolloutCompleted, RolloutFailed)
PROMPT_LOG_PROBS = "input_token_logprobs"
"""SGLang's name of them in what it says of a generation."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A call that came to nothing. is_users: what was asked cannot be done."""

    message: str
    is_users: bool = False


@dataclass(frozen=True, slots=True)
class MadeSamples:
    """The finished rollouts of a call of `sample`. prompt_log_probs: float32 [prompt], where they were asked for."""

    samples: list[Trajectory]
    prompt_log_probs: npt.NDArray[np.float32] | None


class MadeSequences:
    """Which sampled sequence a datum is, for `lineage`: those that this gateway has given out. A client that names them
    itself (`Datum.with_provenance`) needs none of it.
    """

    def __init__(self, most: int = 100_000) -> None:
        self._by_digest: dict[bytes, str] = {}
        self._most = most

    def add(self, made: Trajectory, fetch: Fetch) -> None:
        """A sequence: its prompt and its tokens."""
        self._by_digest[_digest(np.concatenate([fetch(made.prompt), made.tokens]))] = made.sample
        if len(self._by_digest) > self._most:
            del self._by_digest[next(iter(self._by_digest))]

    def of(self, datums: Sequence[Datum]) -> list[str]:
        """The sequences that are datums whole: their tokens, and the last target."""
        digests = (_digest(np.append(one.tokens, one.targets[-1:])) for one in datums)
        return [self._by_digest[digest] for digest in digests if digest in self._by_digest]


def _digest(tokens: npt.NDArray[np.int32]) -> bytes:
    return hashlib.sha256(tokens.astype("<i4").tobytes()).digest()


class Answers:
    """worker: of the gateway. attempts: of one generation, at most. `follow` wakes up those who wait."""

    def __init__(self, worker: Participant, fetch: Fetch, *, attempts: int) -> None:
        self._worker, self.fetch, self._attempts = worker, fetch, attempts
        self._waiting: dict[str, set[asyncio.Event]] = defaultdict(set)
        self.made = MadeSequences()
        self.is_over = False

    async def follow(self) -> None:
        """Read the ends of calls until the run is over."""
        log = self._worker.log
        async with Follower(log, await log.position() + 1, subjects_of(log.run, ENDS)) as follower:
            while not self.is_over:
                for recorded in await follower.next(wait_s=1.0):
                    event = recorded.envelope.event
                    self.is_over = self._worker.is_over(self.is_over, event)
                    for waiting in self._waiting.get(event.entity(), ()):
                        waiting.set()

    async def command(self, name: str, wait_s: float) -> tuple[CommandGiven, CommandDone] | None:
        """A command and its outcome, once there is one; None after `wait_s` without. Raises RunNotFound."""
        given = await self._last("command.given", name)
        if given is None:
            raise RunNotFound(f"request_id {name!r}: this run has no such call")
        async with self._news([name]) as news:
            if (done := await self._last("command.done", name)) is None:
                await _wait(news, wait_s)
                done = await self._last("command.done", name)
        return None if done is None else (given, done)

    async def given(self, name: str) -> CommandGiven | None:
        """A command as it was given."""
        found: CommandGiven | None = await self._last("command.given", name)
        return found

    async def samples(self, asked: Samples, wait_s: float) -> MadeSamples | Failed | None:
        """The rollouts of a call, once all have ended; None after `wait_s`. One whose engine was lost is asked for
        again. Raises RunNotFound.
        """
        end = asyncio.get_running_loop().time() + wait_s
        while True:
            async with self._news(asked.ids) as news:
                found = [await self._sample(name) for name in asked.ids]
                failed = next((one for one in found if isinstance(one, Failed)), None)
                if failed is not None:
                    return failed
                made = [one for one in found if isinstance(one, _Made)]
                if len(made) == len(found):
                    for one in made:
                        self.made.add(one.trajectory, self.fetch)
                    return MadeSamples([one.trajectory for one in made], made[0].prompt_log_probs)
                left = end - asyncio.get_running_loop().time()
                if left <= 0:
                    return None
                await _wait(news, left)

    async def saved(self, path: str) -> int | None:
        """The version that was saved under a path of the protocol; None where there is none."""
        log, version = self._worker.log, None
        async for recorded in log.read(1, of_type(log.run, "command.done")):
            event = recorded.envelope.event
            if isinstance(event, CommandDone) and event.path == path:
                version = event.version
        return version

    async def has_checkpoint(self, version: int) -> bool:
        """Whether the optimizer's state was saved with a version."""
        return await self._last("checkpoint.saved", str(version)) is not None

    async def _sample(self, name: str) -> "_Made | Failed | None":
        log, request = self._worker.log, None
        completed = failed = None
        trajectory = Trajectory(name, msgspec.UNSET)  # type: ignore[arg-type]  # the request comes first
        async for recorded in log.read(1, about(log.run, "rollout", name)):
            event = recorded.envelope.event
            if isinstance(event, RolloutRequested):
                request, failed = event, None
                trajectory.prompt = event.prompt
            elif isinstance(event, RolloutProgressed):
                trajectory.progress(event, self.fetch)
            elif isinstance(event, RolloutCompleted):
                trajectory.complete(event, self.fetch)
                completed = event
            elif isinstance(event, RolloutFailed):
                failed = event
        if request is None:
            raise RunNotFound(f"sample {name}: this run has no such call")
        if completed is not None:
            return _Made(trajectory, _prompt_log_probs(completed.meta, request))
        if failed is None:
            return None
        if failed.kind is not FailureKind.ENGINE or failed.attempt + 1 >= self._attempts:
            return Failed(f"{name}: {failed.message}", failed.kind is not FailureKind.ENGINE)
        again = msgspec.structs.replace(request, attempt=failed.attempt + 1)
        await log.append([Append(self._worker.enclose(again))])
        return None

    async def _last(self, event_type: str, name: str) -> Any:
        log = self._worker.log
        recorded: Recorded | None = await log.last(of_type(log.run, event_type, name))
        return None if recorded is None else recorded.envelope.event

    @contextlib.asynccontextmanager
    async def _news(self, entities: list[str]) -> AsyncIterator[asyncio.Event]:
        """Set by the first end of one of them, from now on."""
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


@dataclass(frozen=True, slots=True)
class _Made:
    trajectory: Trajectory
    prompt_log_probs: npt.NDArray[np.float32] | None


def _prompt_log_probs(meta: dict[str, Any], request: RolloutRequested) -> npt.NDArray[np.float32] | None:
    """SGLang gives [log-prob, id, text] for each token, and none for the first."""
    given = meta.get(PROMPT_LOG_PROBS)
    if given is None or not request.payload:
        return None
    values = [np.nan if one[0] is None else float(one[0]) for one in given[: request.prompt.n]]
    return np.array(values + [np.nan] * (request.prompt.n - len(values)), np.float32)


async def _wait(news: asyncio.Event, wait_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await news.wait()
