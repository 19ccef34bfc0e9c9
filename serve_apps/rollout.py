"""`Rollout`: one sample on one engine, from its request (or its last chunk) to its end in the log.

Tokens are appended chunk by chunk, each append fenced on all events about the sample. When another engine has taken the
sample over (its chunk or end is there first), the fence refuses the append and this engine stops: no token is twice in
the log.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.arrays import Array, pack, pack_log_probs, pack_tokens, unpack
from schemas.errors import EngineError, StorageError
from schemas.event import Event, Purpose
from schemas.prompts import PromptSubmitted
from schemas.rollouts import (
    RolloutCompleted,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    StopReason,
    SuspendReason,
    Timings,
    WeightSpan,
)
from schemas.subjects import about
from serve_apps.engine.checks import checked
from serve_apps.engine.engine import Delta, GenerateRequest, LogProbs, Tokens, narrows
from slime_events.core.kept_tokens import pack_kept
from slime_events.core.trajectory import Trajectory, content_digest, mask_older_versions, merge_spans
from storage.log import EventLog

_NO_TOKENS, _NO_LOG_PROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)
"""They give a rollout without new tokens its types."""
CACHED_PROMPTS = 1024
"""Groups whose prompt is kept; the prompt of an older one is read again."""


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """When a chunk is due: after `tokens` new tokens, or `seconds` after the last chunk. first_at_once: and at the
    first token of all.
    """

    tokens: int
    seconds: float
    first_at_once: bool = False

    def due(self, new_tokens: int, since_s: float, known: int = 0) -> bool:
        """Whether to append now. known: tokens appended so far."""
        first = self.first_at_once and not known
        return new_tokens >= (1 if first else self.tokens) or (new_tokens > 0 and since_s >= self.seconds)


STREAMED = ChunkRule(tokens=8, seconds=0.04, first_at_once=True)
"""Of a rollout whose tokens somebody reads as they come."""


@dataclass(slots=True)
class Rollout:
    """The tokens of a sample: `known` from the log, and those generated since the last append."""

    request: RolloutRequested
    known: Trajectory
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
        return self.known.length + self.new_length

    def add(self, delta: Delta) -> None:
        """Add new tokens from the engine."""
        if len(delta.tokens):
            self.new.append(delta)
            self.new_length += len(delta.tokens)
            self.new_kept += len(delta.kept_counts)

    def chunk(self) -> RolloutProgressed:
        """The new tokens as an event. Call `appended` once it is in the log."""
        tokens, log_probs, spans = self._new()
        kept, kept_log_probs = self._kept()
        return RolloutProgressed(
            sample=self.request.sample,
            attempt=self.request.attempt,
            start=self.known.length,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            spans=merge_spans((), spans),
            engine=self.engine,
            kept=kept,
            kept_log_probs=kept_log_probs,
        )

    def end(self, stop: StopReason, text: str) -> RolloutCompleted:
        """The whole response, with the tokens that no chunk holds yet."""
        tokens, log_probs, spans = self._new()
        kept, kept_log_probs = self._kept()
        whole, whole_log_probs = tokens, log_probs
        if self.known.length:
            whole = np.concatenate([self.known.tokens, tokens])
            whole_log_probs = np.concatenate([self.known.log_probs, log_probs])
        spans = merge_spans(self.known.spans, spans)
        mask = mask_older_versions(spans, len(whole)) if self.request.mask_older else None
        return RolloutCompleted(
            sample=self.request.sample,
            group=self.request.group,
            attempt=self.request.attempt,
            start=self.known.length,
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
        )

    def timings(self) -> Timings:
        """Seconds so far: in the queue, and in the making."""
        return Timings(queued=self.queued, generating=time.perf_counter() - self.begun)

    def suspended(self) -> RolloutSuspended:
        """The rollout is suspended at a step boundary with the tokens in the log. Append the last chunk before."""
        return RolloutSuspended(
            sample=self.request.sample,
            attempt=self.request.attempt,
            length=self.known.length,
            reason=SuspendReason.STEP_BOUNDARY,
            engine=self.engine,
        )

    def appended(self, chunk: RolloutProgressed, position: int) -> None:
        """The chunk is in the log at `position`; its tokens are known from now on."""
        self.known.progress(chunk, unpack)
        self.known.position = position
        self.new, self.new_length, self.new_kept = [], 0, 0
        self.appended_at = time.perf_counter()

    def _kept(self) -> tuple[Array | None, Array | None]:
        """Of the new tokens, where the engine says it. Raises EngineError where it does of some alone."""
        if not self.new_kept:
            return None, None
        counts, ids = (np.concatenate([getattr(one, name) for one in self.new]) for name in ("kept_counts", "kept"))
        if len(counts) != self.new_length:
            raise EngineError(
                f"the engine said of {len(counts)} of {self.new_length} tokens of {self.request.sample} what top-p and "
                "top-k had left of the vocabulary: without it they cannot be trained on"
            )
        log_probs = np.concatenate([delta.kept_log_probs for delta in self.new])
        return pack(pack_kept(counts, ids), "int8"), pack_log_probs(log_probs)

    def _new(self) -> tuple[Tokens, LogProbs, tuple[WeightSpan, ...]]:
        tokens = np.concatenate([_NO_TOKENS, *[delta.tokens for delta in self.new]])
        log_probs = np.concatenate([_NO_LOG_PROBS, *[delta.log_probs for delta in self.new]])
        return tokens, log_probs, tuple([span for delta in self.new for span in delta.spans])


Generate = Callable[[GenerateRequest], AsyncIterator[Delta]]
"""See `Engine.generate`."""


def generate_request(asked: RolloutRequested, rid: str, prompt: Tokens, known: Tokens) -> GenerateRequest:
    """Of a rollout. rid: its name at the engine. known: the tokens that it has."""
    keeps = asked.purpose is Purpose.TRAIN and narrows(asked.sampling)
    return GenerateRequest(rid, prompt, asked.sampling, asked.seed, known, asked.payload, keeps)


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """What the worker lends to one rollout.

    generate: see `Engine.generate`. rid: the rollout's name at the engine. append: appends events in one call, fenced
    on all events about the sample; returns the position of the last. is_suspended: whether the rollout has to stop at a
    step boundary now.
    """

    generate: Generate
    rule: ChunkRule
    rid: str
    append: Callable[[Sequence[Event]], Awaitable[int]]
    is_suspended: Callable[[], bool]


class Suspended(BaseException):  # no error, and nothing that a user's `except Exception` should catch
    """The rollout is suspended at a step boundary: its running calls end here and are repeated later."""


async def stream(
    context: RolloutContext,
    request: GenerateRequest,
    rollout: Rollout,
    append: Callable[[RolloutProgressed], Awaitable[int]],
) -> Delta | None:
    """Generate to the end, chunk by chunk into the log: the last delta, or None where the rollout is suspended.

    The last delta's tokens are added to `rollout`, not appended; a suspended rollout has all its tokens in the log.
    append: appends a chunk and returns its position. Raises what `append` raises, and EngineError where the engine ends
    the response in another way.
    """
    deltas = context.generate(request)
    async with contextlib.aclosing(deltas):  # type: ignore[type-var]  # so that a refused append ends it at once
        async for came in deltas:
            # What comes by `EngineWeights` has been checked; lengths cost nothing.
            delta = came if len(came.tokens) == len(came.log_probs) else checked(came, None, request.rid)
            rollout.add(delta)
            aborted, suspended = delta.finish is StopReason.ABORT, context.is_suspended()
            if delta.finish is not None and not aborted:
                return delta
            since = time.perf_counter() - rollout.appended_at
            due = context.rule.due(rollout.new_length, since, rollout.known.length)
            if due or ((aborted or suspended) and rollout.new_length):
                chunk = rollout.chunk()
                rollout.appended(chunk, await append(chunk))
            if suspended:
                return None
            if aborted:
                raise EngineError(f"the engine aborted {request.rid} after {rollout.length} tokens")
    raise EngineError(f"the engine ended {request.rid} without a finish reason")


class Prompts:
    """The submitted prompts of the groups whose rollouts are made here; read once for all samples of a group."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._reads: dict[str, asyncio.Task[PromptSubmitted]] = {}

    async def of(self, group: str) -> PromptSubmitted:
        """The prompt of a group. Raises StorageError where the log holds none."""
        known = self._reads.get(group)
        if known is not None and known.done() and not known.cancelled() and known.exception() is None:
            return known.result()
        if known is None:
            self._reads[group] = asyncio.create_task(self._read(group))
            if len(self._reads) > CACHED_PROMPTS:
                del self._reads[next(iter(self._reads))]
        try:
            return await asyncio.shield(self._reads[group])
        except BaseException:
            self._reads.pop(group, None)
            raise

    async def _read(self, group: str) -> PromptSubmitted:
        recorded = await self._log.last(about(self._log.run, "prompt", group))
        if recorded is None or not isinstance(recorded.envelope.event, PromptSubmitted):
            raise StorageError(
                f"the log of run {self._log.run} holds no prompt of group {group}, though its rollouts were requested: "
                "`slime-events audit` lists what else is missing"
            )
        return recorded.envelope.event
