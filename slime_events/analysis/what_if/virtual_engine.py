"""`VirtualEngine`: an engine in virtual time. Its rollouts share its speed equally."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Annotated

from schemas.doc import doc
from schemas.rollouts import RolloutRequested, WeightSpan
from schemas.weights import WeightsActivated
from slime_events.analysis.what_if.answers import Answer
from slime_events.analysis.what_if.chunks import ChunkSize
from slime_events.analysis.what_if.clock import Clock
from slime_events.analysis.what_if.delays import Delays
from slime_events.analysis.what_if.engine_speed import EngineSpeed

TINY = 1e-9
"""Tokens within which two rollouts end together."""


@dataclass(slots=True, eq=False)
class Work:
    """A rollout."""

    request: RolloutRequested
    answer: Answer
    requested: Annotated[float, doc("time of the request [s]")]
    engine: str = ""
    begin: Annotated[float, doc("begin of the generation [s]")] = 0.0
    target: Annotated[float, doc("count of the engine's tokens at which it ends")] = 0.0
    chunks: Annotated[float, doc("chunks before its end, per generated token")] = 0.0
    marks: Annotated[list[tuple[int, int]], doc("first token and version of each span")] = field(default_factory=list)

    @property
    def spans(self) -> tuple[WeightSpan, ...]:
        """Weight versions over the response."""
        ends = [start for start, _ in self.marks[1:]] + [self.answer.length]
        pairs = zip(self.marks, ends, strict=True)
        return tuple(WeightSpan(start, end, version) for (start, version), end in pairs if end > start)


class VirtualEngine:
    """One engine. `tokens` counts the tokens that a rollout has generated that has run since the beginning."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        speed: EngineSpeed,
        delays: Delays,
        chunk: ChunkSize,
        on_end: Callable[[Work], None],
        on_activation: Callable[[WeightsActivated], None],
    ) -> None:
        self.name, self.version, self.running, self.most_running = name, 0, 0, 0
        self.waiting: list[Work] = []
        self._clock, self._speed, self._delays, self._chunk = clock, speed, delays, chunk
        self._on_end, self._on_activation = on_end, on_activation
        self._tokens = self._since = self._next_begin = self._chunks_per_token = 0.0
        self._prompts_until = 0.0
        self._loads, self._training, self._epoch = 0, False, 0
        self._decoding: list[tuple[float, int, Work]] = []
        self._numbers = count()
        self._starting = 0

    @property
    def taken(self) -> int:
        """Rollouts that it has, begun or not."""
        return self.running + self._starting + len(self.waiting)

    def take(self, work: Work) -> None:
        """Begin a rollout as soon as the engine has the weights for it."""
        work.engine = self.name
        if work.request.min_version > self.version:
            self.waiting.append(work)
            return
        self._starting += 1
        begin = max(self._clock.now + self._delays.to_begin, self._next_begin)
        self._next_begin = begin + self._delays.between
        self._clock.after(begin - self._clock.now, partial(self._begin, work))

    def publish(self, version: int) -> None:
        """Load a version as soon as a load takes."""
        delays = self._delays
        self._clock.after(delays.to_activate - delays.loading, self._pause)
        self._clock.after(max(delays.to_activate, delays.loading), partial(self._activate, version))

    def train(self, *, training: bool) -> None:
        """Take into account that the trainer begins or ends a step."""
        if training != self._training:
            self._advance()
            self._training = training
            self._plan()

    def _pause(self) -> None:
        self._advance()
        self._loads += 1
        self._plan()

    def _activate(self, version: int) -> None:
        self._advance()
        self._loads -= 1
        if version > self.version:
            self.version = version
            delays = self._delays
            self._on_activation(
                WeightsActivated(
                    version=version,
                    engine=self.name,
                    digest=f"v{version}",
                    seconds=delays.loading,
                    lag=max(delays.to_activate, delays.loading),
                )
            )
            for _, _, work in self._decoding:
                done = work.answer.generated - (work.target - self._tokens)
                self._mark(work, max(0, int(done)))
        waiting, self.waiting = self.waiting, []
        for work in waiting:
            self.take(work)
        self._plan()

    def _mark(self, work: Work, token: int) -> None:
        """Note that the tokens from this one on are of the engine's version. Tools' tokens count as before them."""
        if work.marks and work.marks[-1][0] >= token:
            work.marks[-1] = (work.marks[-1][0], self.version)
        else:
            work.marks.append((token, self.version))

    def _begin(self, work: Work) -> None:
        self._advance()
        self._starting -= 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        work.begin = self._clock.now
        self._prompts_until = max(self._clock.now, self._prompts_until) + self._speed.per_prompt
        work.target = self._tokens + work.answer.generated
        if generated := work.answer.generated:
            each = self._speed.seconds_per_token(self.running, training=self._training)
            work.chunks = self._chunk.count(generated, each) / generated
        self._chunks_per_token += work.chunks
        self._mark(work, 0)
        heapq.heappush(self._decoding, (work.target, next(self._numbers), work))
        self._plan()

    def _advance(self) -> None:
        """Count the tokens up to now. While the engine computes prompts, it generates none."""
        since, self._since = max(self._since, min(self._prompts_until, self._clock.now)), self._clock.now
        if self._decoding and not self._loads:
            each = self._each()
            passed = self._clock.now - since
            self._tokens += passed / each if each > 0 else self._decoding[0][0] - self._tokens

    def _plan(self) -> None:
        """Wake up when the next rollout ends, unless anything changes before."""
        self._epoch += 1
        if self._decoding and not self._loads:
            each = self._each()
            prompts = max(0.0, self._prompts_until - self._clock.now)
            left = (self._decoding[0][0] - self._tokens) * each
            self._clock.after(prompts + left, partial(self._wake, self._epoch))

    def _wake(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        self._advance()
        self._tokens = max(self._tokens, self._decoding[0][0])  # rounding must not lose the end
        while self._decoding and self._decoding[0][0] <= self._tokens + TINY:
            _, _, work = heapq.heappop(self._decoding)
            self._chunks_per_token -= work.chunks
            self._clock.after(work.answer.tools + self._speed.per_rollout, partial(self._end, work))
        self._plan()

    def _each(self) -> float:
        """Return the time of a token of each rollout now [s]. Chunks take their time evenly over their rollout."""
        each = self._speed.seconds_per_token(self.running, training=self._training)
        return each + self._speed.per_chunk * max(0.0, self._chunks_per_token)

    def _end(self, work: Work) -> None:
        self._advance()
        self.running -= 1
        self._plan()
        self._on_end(work)
