"""`Calls`: the generations that a rollout function asks for, as requests in the log that the run's engines answer.

    session.generate -> rollout.requested of purpose `call` -> (an engine) -> rollout.progressed, .completed -> turn

A request is named by what it asks. So a function that is called again after a crash gets the answers that are in the
log, and what an engine was in the midst of goes on from its last chunk.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from schemas.arrays import EMPTY_TOKENS, pack_tokens
from schemas.errors import Conflict, EngineError, StorageError
from schemas.event import Purpose
from schemas.ids import call_group_id, sample_id
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    Sampling,
    StopReason,
    WeightSpan,
)
from schemas.subjects import about
from schemas.turns import ToolCall, TurnRecorded, TurnRole
from serve_apps.engine.engine import Tokens
from serve_apps.generate.journal import Ended, InFlight
from serve_apps.generate.session import Session
from serve_apps.rollout_function.made_turns import MadeTurn, MadeTurns
from slime_events.core.run.participant import Participant
from slime_events.core.trajectory import Fetch, Trajectory
from slime_events.loop.conductor.draw import sample_seed
from slime_events.plugins.args_view import ArgsView
from storage.group_commit import GroupCommit
from storage.log import Append, Fence, Recorded, once

_canonical = msgspec.msgpack.Encoder(order="sorted")
MOVED_S = 0.05
"""Seconds until another look at a request that an engine has just written about."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What all calls of a run share. seed: the run's. attempts: of one generation, at most. made: where they are noted.
    decode: the text of tokens.
    """

    worker: Participant
    commit: GroupCommit
    fetch: Fetch
    seed: int
    attempts: int
    made: MadeTurns
    decode: Callable[[list[int]], str]


@dataclass(slots=True)
class _Call:
    request: RolloutRequested
    known: Trajectory
    ended: asyncio.Future[RolloutCompleted | None] = field(default_factory=asyncio.Future)
    requested: bool = False
    later: list[Recorded] | None = None
    """What came while the log was read for it."""
    retry: asyncio.Task[None] | None = None


class Calls:
    """The generations of one call of the function, for a `Session`. versions: the weights that may make one that is
    requested now, oldest and newest. looks_up: the log may have some of them from before this process.
    """

    def __init__(
        self,
        context: CallContext,
        step: int,
        versions: Callable[[], tuple[int, int | None]],
        *,
        evaluation: bool = False,
        looks_up: bool = False,
    ) -> None:
        self._context, self._versions, self._looks_up = context, versions, looks_up
        self._group = partial(call_group_id, step, evaluation=evaluation)
        self._step = step
        self._asked: Counter[str] = Counter()
        self._open: dict[str, _Call] = {}
        self._turns = 0
        self.failure: BaseException | None = None  # a generation that fails says so by itself
        self.has_returned = self.aborted = False
        """Whether the function has, and whether nothing is generated any more."""
        self.spans: list[WeightSpan] = []
        """Of all its generations."""

    @property
    def is_over(self) -> bool:
        """Whether the function has returned, and nothing is under way in its own threads."""
        return self.has_returned and not self._open

    async def generate(self, prompt: Tokens, sampling: Sampling, seed: int | None, payload: dict[str, Any]) -> Ended:
        """One generation. Raises EngineError where no engine could make it."""
        if self.aborted:
            return self._ended(None, Trajectory("", EMPTY_TOKENS))
        question = (prompt.tobytes(), msgspec.to_builtins(sampling), seed, payload)
        group = self._group(hashlib.sha256(_canonical.encode(question)).hexdigest())
        sample = sample_id(group, self._asked[group])
        self._asked[group] += 1
        oldest, newest = self._versions()
        request = RolloutRequested(
            sample=sample,
            group=group,
            index=self._asked[group] - 1,
            prompt=pack_tokens(prompt),
            sampling=sampling,
            seed=sample_seed(self._context.seed, sample) if seed is None else seed,
            min_version=oldest,
            max_version=newest,
            purpose=Purpose.CALL,
            payload=payload,
        )
        call = self._open[sample] = _Call(request, Trajectory(sample, request.prompt))
        try:
            if self._looks_up:
                await self._read(sample)
            if not call.requested:
                await self._request(request)
            ended = self._ended(await call.ended, call.known)
        finally:
            del self._open[sample]
        self._turns += 1
        self.spans += ended.event.spans
        self._context.made.add(MadeTurn(prompt, ended, sample), self._step)
        return ended

    async def abort(self) -> None:
        """End what is under way: it returns with the tokens that the log has, and `abort` as its finish reason."""
        self.aborted = True
        for call in list(self._open.values()):
            request, subject = call.request, about(self._context.worker.log.run, "rollout", call.request.sample)
            failed = RolloutFailed(
                sample=request.sample,
                group=request.group,
                attempt=request.attempt,
                kind=FailureKind.ABORTED,
                message="the rollout function wants no more of it",
                engine=self._context.worker.id,
            )
            while not call.ended.done():
                try:  # the fence of the engine that makes it has moved then, so it ends
                    await self._append(
                        Append(self._context.worker.enclose(failed), Fence(subject, call.known.position))
                    )
                    break
                except Conflict:
                    await asyncio.sleep(MOVED_S)

    def apply(self, recorded: Recorded) -> None:
        """Take in the next event of the log."""
        event = recorded.envelope.event
        call = self._open.get(getattr(event, "sample", ""))
        if call is not None and call.later is not None:
            call.later.append(recorded)
        elif call is not None:
            self._take(call, recorded)

    def _take(self, call: _Call, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if recorded.position <= call.known.position:
            return
        call.known.position = recorded.position
        if isinstance(event, RolloutRequested):
            call.request, call.requested = event, True
        elif isinstance(event, RolloutProgressed):
            call.known.progress(event, self._context.fetch)
        elif isinstance(event, RolloutCompleted):
            call.known.complete(event, self._context.fetch)
            _resolve(call, event)
        elif isinstance(event, RolloutFailed):
            call.requested = False
            if event.kind is FailureKind.ABORTED:
                _resolve(call, None)
            elif event.kind is not FailureKind.ENGINE or event.attempt + 1 >= self._context.attempts:
                _fail(call, EngineError(f"the generation {event.sample} failed: {event.message}"))
            else:
                call.retry = asyncio.create_task(self._again(call))

    async def _read(self, sample: str) -> None:
        """What the log has of it. What was aborted or failed then is asked for again, and goes on from its chunks."""
        log, call = self._context.worker.log, self._open[sample]
        call.later = []
        async for recorded in log.read(1, about(log.run, "rollout", sample)):
            self._take(call, recorded)
        later, call.later = call.later, None
        for recorded in later:
            self._take(call, recorded)
        if call.ended.done() and (call.ended.exception() is not None or call.ended.result() is None):
            call.ended = asyncio.Future()
            await self._again(call)

    async def _again(self, call: _Call) -> None:
        oldest, newest = self._versions()
        changes = {"attempt": call.request.attempt + 1, "min_version": oldest, "max_version": newest}
        try:
            await self._request(msgspec.structs.replace(call.request, **changes))
        except StorageError as error:
            _fail(call, error)

    async def _request(self, request: RolloutRequested) -> None:
        envelope = self._context.worker.enclose(request)
        self._open[request.sample].requested = True
        await self._append(Append(envelope) if request.attempt else once(envelope))

    async def _append(self, append: Append) -> None:
        await self._context.commit.append([append])

    def _ended(self, completed: RolloutCompleted | None, known: Trajectory) -> Ended:
        """completed: None for what was aborted."""
        event = TurnRecorded(
            sample=known.sample,
            index=self._turns,
            role=TurnRole.ASSISTANT,
            asked="",
            engine="" if completed is None else completed.engine,
            length=known.length,
            spans=known.spans,
            stop=StopReason.ABORT if completed is None else completed.stop,
            text=self._context.decode(known.tokens.tolist()) if completed is None else completed.text,
            meta={} if completed is None else completed.meta,
        )
        return Ended(event, known.tokens, known.log_probs)

    async def begin_call(self, call: ToolCall) -> InFlight:
        """A tool runs in the function's process. What the function makes of it is recorded, not the call."""
        return InFlight(self._turns, "", Trajectory("tool", EMPTY_TOKENS), call)

    async def end_call(self, turn: InFlight, result: Any, error: str, seconds: float) -> Ended:
        """The tool's answer."""
        event = TurnRecorded(
            sample="tool", index=turn.index, role=TurnRole.TOOL, asked="", engine="", result=result, error=error
        )
        return Ended(event, turn.draft.tokens, turn.draft.log_probs)


def _resolve(call: _Call, completed: RolloutCompleted | None) -> None:
    if not call.ended.done():
        call.ended.set_result(completed)


def _fail(call: _Call, error: Exception) -> None:
    if not call.ended.done():
        call.ended.set_exception(error)


class FunctionSession(Session):
    """The session of one call of a rollout function."""

    of_function = True

    def __init__(self, calls: Calls, tokenizer: Any, sampling: Sampling, args: ArgsView) -> None:
        super().__init__(calls, tokenizer, sampling, args)
        self._calls = calls

    async def abort(self) -> None:
        """See `Calls.abort`."""
        self.aborted = True
        await self._on_worker_loop(self._calls.abort())

    def reset(self) -> None:
        """Generate again."""
        self.aborted = self._calls.aborted = False
