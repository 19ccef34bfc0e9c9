"""`Rollout`: one sample on one engine, from its request (or its last chunk) to its end in the log.

It appends what the engine gives, chunk by chunk, each fenced on everything said of the sample. When another engine has
taken the sample over (its chunk or end is there first), the fence refuses and this one stops: no token is there twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schemas.arrays import pack, pack_log_probs, pack_tokens
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
from slime_events.core.trajectory import Trajectory, content_digest, mask_older_versions, merge_spans


@dataclass(frozen=True, slots=True)
class ChunkRule:
    """When a running rollout says what it has: every `tokens` new tokens or `seconds` after the last chunk."""

    tokens: int
    seconds: float

    def due(self, new_tokens: int, since_s: float) -> bool:
        """Whether to append now."""
        return new_tokens >= self.tokens or (new_tokens > 0 and since_s >= self.seconds)


@dataclass(slots=True)
class Rollout:
    """The tokens of a sample: `known` from the log, and what is new since the last append."""

    request: RolloutRequested
    known: Trajectory
    engine: str
    begun: float = field(default_factory=time.perf_counter)
    queued: float = 0.0
    new_tokens: list[npt.NDArray[np.int32]] = field(default_factory=list)
    new_log_probs: list[npt.NDArray[np.float32]] = field(default_factory=list)
    new_spans: tuple[WeightSpan, ...] = ()
    new_length: int = 0
    said_at: float = field(default_factory=time.perf_counter)

    @property
    def length(self) -> int:
        """Response tokens, said and new."""
        return self.known.length + self.new_length

    def add(
        self, tokens: npt.NDArray[np.int32], log_probs: npt.NDArray[np.float32], spans: tuple[WeightSpan, ...]
    ) -> None:
        """New tokens from the engine; spans in positions of the whole response."""
        if len(tokens):
            self.new_tokens.append(tokens)
            self.new_log_probs.append(log_probs)
            self.new_spans = merge_spans(self.new_spans, spans)
            self.new_length += len(tokens)

    def due(self, rule: ChunkRule) -> bool:
        """Whether a chunk is to be said now."""
        return rule.due(self.new_length, time.perf_counter() - self.said_at)

    def chunk(self) -> RolloutProgressed:
        """What is new, as an event. Call `said` once it is in the log."""
        tokens, log_probs = self._new()
        return RolloutProgressed(
            sample=self.request.sample,
            attempt=self.request.attempt,
            start=self.known.length,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            spans=self.new_spans,
            engine=self.engine,
        )

    def end(self, stop: StopReason, text: str) -> RolloutCompleted:
        """The whole, with what no chunk holds yet."""
        tokens, log_probs = self._new()
        whole = np.concatenate([self.known.tokens, tokens])
        spans = merge_spans(self.known.spans, self.new_spans)
        mask = mask_older_versions(spans, len(whole)) if self.request.mask_older else None
        return RolloutCompleted(
            sample=self.request.sample,
            group=self.request.group,
            attempt=self.request.attempt,
            start=self.known.length,
            length=len(whole),
            prompt_length=self.request.prompt.n,
            stop=stop,
            text=text,
            spans=spans,
            digest=content_digest(whole, np.concatenate([self.known.log_probs, log_probs])),
            engine=self.engine,
            tokens=pack_tokens(tokens),
            log_probs=pack_log_probs(log_probs),
            loss_mask=None if mask is None else pack(mask, "int8"),
            timings=Timings(queued=self.queued, generating=time.perf_counter() - self.begun),
        )

    def rest(self) -> RolloutSuspended:
        """That it rests at a step boundary with what the log holds. Say the last chunk first."""
        return RolloutSuspended(
            sample=self.request.sample,
            attempt=self.request.attempt,
            length=self.known.length,
            reason=SuspendReason.STEP_BOUNDARY,
            engine=self.engine,
        )

    def said(self, position: int) -> None:
        """The chunk is in the log at `position`: it is known from now on."""
        tokens, log_probs = self._new()
        self.known.tokens = np.concatenate([self.known.tokens, tokens])
        self.known.log_probs = np.concatenate([self.known.log_probs, log_probs])
        self.known.spans = merge_spans(self.known.spans, self.new_spans)
        self.known.position = position
        self.new_tokens, self.new_log_probs, self.new_spans, self.new_length = [], [], (), 0
        self.said_at = time.perf_counter()

    def _new(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        if not self.new_tokens:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        return np.concatenate(self.new_tokens), np.concatenate(self.new_log_probs)
