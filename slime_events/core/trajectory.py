"""`Trajectories`: the tokens of running and finished rollouts, folded from their chunks."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.arrays import Array
from schemas.errors import RunNotFound, StorageError
from schemas.ids import requested_sample
from schemas.rewards import RewardAssigned
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    StopReason,
    WeightSpan,
)
from schemas.subjects import about
from slime_events.core.kept_tokens import KeptTokens
from storage.log import Readable

Fetch = Callable[[Array], npt.NDArray[Any]]
"""Gives an array's numbers, from inline bytes or the blob store."""


_NO_TOKENS, _NO_LOG_PROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class _Growing:
    """An array that grows by its end. Parts are joined once it is looked at, so that many take linear time."""

    __slots__ = ("_parts", "length")

    def __init__(self, empty: npt.NDArray[Any]) -> None:
        self._parts: list[npt.NDArray[Any]] = [empty]
        self.length = 0

    def add(self, part: npt.NDArray[Any]) -> None:
        self._parts.append(part)
        self.length += len(part)

    def whole(self) -> npt.NDArray[Any]:
        if len(self._parts) == 2 and not len(self._parts[0]):  # one chunk, which needs no copy
            del self._parts[0]
        elif len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


@dataclass(slots=True)
class Trajectory:
    """One rollout so far. prompt: int32 [prompt]; tokens: int32 [response]; log_probs: float32 [response].

    position: of the newest event folded in, the fence of the next. attempt: of the newest request. rollout: the
    requested sample, where this is a further one of its rollout. reused: recorded by another run. requested_prompt: of
    the request, where the rollout ended with another prompt; prompt_text: the text of that other. teacher_log_probs: as
    its reward has them. credit: float32 [response], what each token's advantage is multiplied by; None: 1.
    """

    sample: str
    prompt: Array
    attempt: int = 0
    position: int = 0
    spans: tuple[WeightSpan, ...] = ()
    loss_mask: npt.NDArray[np.int8] | None = None
    stop: StopReason | None = None
    text: str = ""
    digest: str = ""
    rollout: str = ""
    reused: bool = False
    requested_prompt: Array | None = None
    prompt_text: str = ""
    kept: list[KeptTokens] = field(default_factory=list, repr=False)
    teacher_log_probs: Array | None = None
    credit: Array | None = None
    _tokens: _Growing = field(default_factory=lambda: _Growing(_NO_TOKENS), repr=False)
    _log_probs: _Growing = field(default_factory=lambda: _Growing(_NO_LOG_PROBS), repr=False)

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        return self._tokens.whole()

    @property
    def log_probs(self) -> npt.NDArray[np.float32]:
        return self._log_probs.whole()

    @property
    def length(self) -> int:
        """Response tokens so far."""
        return self._tokens.length

    @property
    def oldest(self) -> int:
        """The oldest weight version in it."""
        return min([span.version for span in self.spans], default=0)

    @property
    def newest(self) -> int:
        """The newest weight version in it."""
        return max([span.version for span in self.spans], default=0)

    def progress(self, event: RolloutProgressed, fetch: Fetch) -> None:
        """Append a chunk. Raises StorageError where it does not start at the end."""
        self._keep(event, fetch)
        self.join(event.start, event.tokens, event.log_probs, fetch)
        self.spans = merge_spans(self.spans, event.spans)

    def complete(self, event: RolloutCompleted, fetch: Fetch) -> None:
        """Append the rest and complete the rollout."""
        self._keep(event, fetch)
        self.join(event.start, event.tokens, event.log_probs, fetch)
        if self.length != event.length:
            raise StorageError(f"rollout {self.sample} says {event.length} tokens, the log holds {self.length}")
        self.spans, self.stop, self.text, self.digest = event.spans, event.stop, event.text, event.digest
        self.reused = event.origin is not None
        if event.loss_mask is not None:
            self.loss_mask = fetch(event.loss_mask)
        self.credit = event.credit
        if event.prompt is not None:
            self.requested_prompt, self.prompt, self.prompt_text = self.prompt, event.prompt, event.prompt_text

    def _keep(self, event: RolloutProgressed | RolloutCompleted, fetch: Fetch) -> None:
        if event.kept is not None and event.kept_log_probs is not None:
            self.kept.append(KeptTokens(event.start, fetch(event.kept), fetch(event.kept_log_probs)))

    def join(self, start: int, tokens: Array, log_probs: Array, fetch: Fetch) -> None:
        """Append tokens. Raises StorageError where they do not start at the end."""
        if start != self.length or tokens.n != log_probs.n:
            raise StorageError(
                f"rollout {self.sample}: a chunk of {tokens.n} tokens and {log_probs.n} log-probs starts at {start}, "
                f"but the log holds {self.length} tokens before it"
            )
        if tokens.n:
            self._tokens.add(fetch(tokens))
            self._log_probs.add(fetch(log_probs))


FOLDED = (RolloutRequested, RolloutProgressed, RolloutCompleted, RolloutFailed, RolloutSuspended)
"""The event types that trajectories are made of."""


class Trajectories:
    """The rollouts of the requested samples, by sample id."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self.by_sample: dict[str, Trajectory] = {}

    def apply(self, event: object, position: int) -> None:
        """Fold one event in; but for a teacher's log-probs of a reward, types that are not `FOLDED` are ignored."""
        if isinstance(event, RolloutRequested):
            requested = self.by_sample.setdefault(event.sample, Trajectory(event.sample, event.prompt))
            requested.attempt, requested.position = event.attempt, position
        elif isinstance(event, RewardAssigned):
            if event.teacher_log_probs is not None and (graded := self.by_sample.get(event.sample)) is not None:
                graded.teacher_log_probs = event.teacher_log_probs
        elif isinstance(event, FOLDED):
            known = self.by_sample.get(event.sample)
            if known is None and isinstance(event, RolloutCompleted):
                known = self._sibling(event)
            if known is None:
                return
            if isinstance(event, RolloutProgressed):
                if event.turn is None:  # a rollout with turns is whole in its completion
                    known.progress(event, self._fetch)
            elif isinstance(event, RolloutCompleted):
                known.complete(event, self._fetch)
            known.position = position

    def _sibling(self, event: RolloutCompleted) -> Trajectory | None:
        """A further sample of a requested rollout."""
        requested = self.by_sample.get(event.rollout)
        if requested is None:
            return None
        prompt = requested.requested_prompt or requested.prompt  # its completion may replace the prompt
        sibling = Trajectory(event.sample, prompt, attempt=event.attempt, rollout=event.rollout)
        self.by_sample[event.sample] = sibling
        return sibling

    def forget(self, samples: tuple[str, ...]) -> None:
        """Release samples that are not needed any more."""
        for sample in samples:
            self.by_sample.pop(sample, None)


async def read_trajectory(log: Readable, sample: str, fetch: Fetch) -> Trajectory:
    """Tokens, log-probs, spans and text of one sample so far. Raises RunNotFound, BlobMissing, StorageError."""
    folded = Trajectories(fetch)
    for name in dict.fromkeys((requested_sample(sample), sample)):
        async for recorded in log.read(subject=about(log.run, "rollout", name)):
            folded.apply(recorded.envelope.event, recorded.position)
    if sample not in folded.by_sample:
        raise RunNotFound(f"run {log.run} has no rollout of sample {sample!r}")
    return folded.by_sample[sample]


def merge_spans(spans: tuple[WeightSpan, ...], more: tuple[WeightSpan, ...]) -> tuple[WeightSpan, ...]:
    """Spans joined end to end; neighbours of one version become one."""
    merged = list(spans)
    for span in more:
        if merged and merged[-1].version == span.version and merged[-1].end == span.start:
            merged[-1] = WeightSpan(merged[-1].start, span.end, span.version)
        elif span.end > span.start:
            merged.append(span)
    return tuple(merged)


def mask_older_versions(spans: tuple[WeightSpan, ...], length: int) -> npt.NDArray[np.int8] | None:
    """Loss mask int8 [length]: 0 on tokens of older versions than the last span's; None where there are none."""
    older = [span for span in spans if span.version < spans[-1].version]
    if not older:
        return None
    mask = np.ones(length, np.int8)
    for span in older:
        mask[span.start : span.end] = 0
    return mask


def content_digest(tokens: npt.NDArray[np.int32], log_probs: npt.NDArray[np.float32]) -> str:
    """sha256 over the response's token bytes and log-prob bytes, little-endian; hex."""
    digest = hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes())
    digest.update(np.ascontiguousarray(log_probs, dtype="<f4").tobytes())
    return digest.hexdigest()
