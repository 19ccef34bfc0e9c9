"""`Rollout`: one sample on one engine, from its request (or its last chunk) to its end in the log.

Tokens are appended chunk by chunk. Each append is fenced on all events about the sample. If another engine has taken
the sample over (its chunk or end is in the log first), the fence refuses the append and this engine stops: no token is
twice in the log.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from schemas.arrays import Array, pack, pack_log_probs, pack_tokens, unpack
from schemas.doc import doc
from schemas.errors import EngineError, StorageError
from schemas.event import Event, Purpose
from schemas.prompts import PromptSubmitted
from schemas.rollouts import (
    RolloutCompleted,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    RoutedExperts,
    StopReason,
    SuspendReason,
    Timings,
    WeightSpan,
)
from schemas.subjects import about
from serve_apps.engines.checks import checked
from serve_apps.engines.engine import Delta, GenerateRequest, LogProbs, Tokens, narrows
from slime_events.core.tokens.kept_tokens import pack_kept
from slime_events.core.tokens.trajectory import Trajectory, content_digest, mask_older_versions, merge_spans
from storage.log import EventLog

_NO_TOKENS, _NO_LOG_PROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)
"""Start of a concatenation, so that a rollout without new tokens has arrays of the right types."""
CACHED_PROMPTS = 1024
"""Groups whose prompt is cached. An older group's prompt is read again."""


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """When a chunk is due: after `tokens` new tokens, or `seconds` after the last chunk.

    With `first_at_once` also at the very first token.
    """

    tokens: int
    seconds: float
    first_at_once: bool = False

    def due(self, new_tokens: int, since_s: float, appended: int = 0) -> bool:
        """Return whether to append now. `appended` counts the tokens appended so far."""
        first = self.first_at_once and not appended
        return new_tokens >= (1 if first else self.tokens) or (new_tokens > 0 and since_s >= self.seconds)


STREAMED = ChunkRule(tokens=8, seconds=0.04, first_at_once=True)
"""Rule for a rollout whose tokens a client reads as they arrive."""


@dataclass(slots=True)
class Rollout:
    """The tokens of a sample: `trajectory` from the log, and those generated since the last append."""

    request: RolloutRequested
    trajectory: Trajectory
    engine: str
    begun: float = field(default_factory=time.perf_counter)
    queued: float = 0.0
    new: list[Delta] = field(default_factory=list)
    new_length: int = 0
    new_kept: int = 0
    appended_at: float = field(default_factory=time.perf_counter)

    @property
    def length(self) -> int:
        """Response tokens, appended and new."""
        return self.trajectory.length + self.new_length

    def add(self, delta: Delta) -> None:
        """Add new tokens from the engine."""
        if len(delta.tokens):
            self.new.append(delta)
            self.new_length += len(delta.tokens)
            self.new_kept += len(delta.kept_counts)

    def chunk(self) -> RolloutProgressed:
        """Return the new tokens as an event. Call `appended` once it is in the log."""
        tokens, log_probs, spans = self._new()
        kept, kept_log_probs = self._kept()
        return RolloutProgressed(
            sample=self.request.sample,
            attempt=self.request.attempt,
            start=self.trajectory.length,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            spans=merge_spans((), spans),
            engine=self.engine,
            kept=kept,
            kept_log_probs=kept_log_probs,
        )

    def end(self, stop: StopReason, text: str, experts: RoutedExperts | None = None) -> RolloutCompleted:
        """Return the whole response, with the tokens that no chunk holds yet."""
        tokens, log_probs, spans = self._new()
        kept, kept_log_probs = self._kept()
        whole, whole_log_probs = tokens, log_probs
        if self.trajectory.length:
            whole = np.concatenate([self.trajectory.tokens, tokens])
            whole_log_probs = np.concatenate([self.trajectory.log_probs, log_probs])
        spans = merge_spans(self.trajectory.spans, spans)
        mask = mask_older_versions(spans, len(whole)) if self.request.mask_older else None
        return RolloutCompleted(
            sample=self.request.sample,
            group=self.request.group,
            attempt=self.request.attempt,
            start=self.trajectory.length,
            length=len(whole),
            prompt_length=self.request.prompt_length,
            stop=stop,
            text=text,
            spans=spans,
            digest=content_digest(whole, whole_log_probs),
            engine=self.engine,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            loss_mask=None if mask is None else pack(mask, "int8"),
            timings=self.timings(),
            place=self.request.place,
            kept=kept,
            kept_log_probs=kept_log_probs,
            experts=experts,
        )

    def timings(self) -> Timings:
        """Return the seconds so far: in the queue, and of generation."""
        return Timings(queued=self.queued, generating=time.perf_counter() - self.begun)

    def suspended(self) -> RolloutSuspended:
        """Return the event of a suspension at a step boundary. Append the last chunk first."""
        return RolloutSuspended(
            sample=self.request.sample,
            attempt=self.request.attempt,
            length=self.trajectory.length,
            reason=SuspendReason.STEP_BOUNDARY,
            engine=self.engine,
        )

    def appended(self, chunk: RolloutProgressed, position: int) -> None:
        """Record that the chunk is in the log at `position`."""
        self.trajectory.progress(chunk, unpack)
        self.trajectory.position = position
        self.new, self.new_length, self.new_kept = [], 0, 0
        self.appended_at = time.perf_counter()

    def _kept(self) -> tuple[Array | None, Array | None]:
        """Return the vocabulary that top-p and top-k kept for the new tokens, if the engine reports it.

        Raises EngineError if the engine reports it for only some tokens.
        """
        if not self.new_kept:
            return None, None
        counts = np.concatenate([delta.kept_counts for delta in self.new])
        ids = np.concatenate([delta.kept for delta in self.new])
        if len(counts) != self.new_length:
            raise EngineError(
                f"the engine reported for {len(counts)} of {self.new_length} tokens of {self.request.sample} which "
                "vocabulary top-p and top-k kept: training needs it for all tokens"
            )
        log_probs = np.concatenate([delta.kept_log_probs for delta in self.new])
        return pack(pack_kept(counts, ids), "int8"), pack_log_probs(log_probs)

    def _new(self) -> tuple[Tokens, LogProbs, tuple[WeightSpan, ...]]:
        tokens = np.concatenate([_NO_TOKENS, *[delta.tokens for delta in self.new]])
        log_probs = np.concatenate([_NO_LOG_PROBS, *[delta.log_probs for delta in self.new]])
        return tokens, log_probs, tuple([span for delta in self.new for span in delta.spans])


Generate = Callable[[GenerateRequest], AsyncIterator[Delta]]
"""See `Engine.generate`."""


def generate_request(request: RolloutRequested, rid: str, prompt: Tokens, resume: Tokens) -> GenerateRequest:
    """Return the engine's request for a rollout, named `rid` there, that continues after the tokens `resume`."""
    trains = request.purpose is Purpose.TRAIN
    keeps = trains and narrows(request.sampling)
    return GenerateRequest(rid, prompt, request.sampling, request.seed, resume, request.payload, keeps, trains)


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """The worker's services for one rollout."""

    generate: Annotated[Generate, doc("See `Engine.generate`.")]
    rule: ChunkRule
    rid: Annotated[str, doc("The rollout's name at the engine.")]
    append: Annotated[
        Callable[[Sequence[Event]], Awaitable[int]],
        doc("Append in one call, fenced on all events about the sample; returns the position of the last event."),
    ]
    is_suspended: Annotated[Callable[[], bool], doc("Whether the rollout has to stop at a step boundary now.")]
    prompt: Annotated[
        Callable[[], Awaitable[Tokens]], doc("Returns the prompt's token ids, with those of an agent's earlier turns.")
    ]


class Suspended(BaseException):  # not an error: a user's `except Exception` must not catch it
    """The rollout is suspended at a step boundary. Its running calls end here and are repeated later."""


async def stream(
    context: RolloutContext,
    request: GenerateRequest,
    rollout: Rollout,
    append: Callable[[RolloutProgressed], Awaitable[int]],
) -> Delta | None:
    """Generate to the end, appending chunk by chunk. Return the last delta, or None if the rollout is suspended.

    The last delta's tokens are added to `rollout`, but not appended. All tokens of a suspended rollout are in the log.
    `append` appends a chunk and returns its position. Raises the errors of `append`, and EngineError if the engine ends
    the response in any other way.
    """
    deltas = context.generate(request)
    async with contextlib.aclosing(deltas):  # type: ignore[type-var]  # a refused append ends it at once
        async for delta in deltas:
            # `EngineWeights` has checked its deltas; comparing lengths costs nothing.
            if len(delta.tokens) != len(delta.log_probs):
                delta = checked(delta, None, request.rid)
            rollout.add(delta)
            aborted, suspended = delta.finish is StopReason.ABORT, context.is_suspended()
            if delta.finish is not None and not aborted:
                return delta
            since = time.perf_counter() - rollout.appended_at
            due = context.rule.due(rollout.new_length, since, rollout.trajectory.length)
            if due or ((aborted or suspended) and rollout.new_length):
                chunk = rollout.chunk()
                rollout.appended(chunk, await append(chunk))
            if suspended:
                return None
            if aborted:
                raise EngineError(f"the engine aborted {request.rid} after {rollout.length} tokens")
    raise EngineError(f"the engine ended {request.rid} without a finish reason")


class Prompts:
    """The submitted prompts of groups whose rollouts are made here. Each is read once for all samples of its group."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reads: dict[str, asyncio.Task[PromptSubmitted]] = {}

    async def of(self, group: str) -> PromptSubmitted:
        """Return the prompt of a group. Raises StorageError if the log holds none."""
        reading = self._reads.get(group)
        if reading is not None and reading.done() and not reading.cancelled() and reading.exception() is None:
            return reading.result()
        if reading is None:
            self._reads[group] = asyncio.create_task(self._read(group))
            if len(self._reads) > CACHED_PROMPTS:
                del self._reads[next(iter(self._reads))]
        try:
            return await asyncio.shield(self._reads[group])
        except BaseException:  # cancelled too: the next caller reads again
            self._reads.pop(group, None)
            raise

    async def _read(self, group: str) -> PromptSubmitted:
        recorded = await self._log.last(about(self._log.run, "prompt", group))
        if recorded is None or not isinstance(recorded.envelope.event, PromptSubmitted):
            raise StorageError(
                f"the log of run {self._log.run} holds no prompt of group {group}, but requests of its rollouts: "
                "`slime-events audit` lists what else is missing"
            )
        return recorded.envelope.event
