"""`Trajectories`: the tokens of running and finished rollouts, folded from their chunks."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from schemas.arrays import Array
from schemas.doc import doc
from schemas.errors import RunNotFound, StorageError
from schemas.ids import requested_sample
from schemas.rewards import RewardAssigned
from schemas.rollouts import (
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutSuspended,
    RoutedExperts,
    StopReason,
    WeightSpan,
)
from schemas.subjects import about
from slime_events.core.tokens.kept_tokens import KeptTokens
from storage.log import Readable

Fetch = Callable[[Array], npt.NDArray[Any]]
"""Returns an array's numbers, from inline bytes or the blob store."""


_NO_TOKENS, _NO_LOG_PROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)


class _Growing:
    """An array that grows at its end. Parts are joined when they are read, so a series of appends takes linear time."""

    __slots__ = ("_parts", "length")

    def __init__(self, empty: npt.NDArray[Any]) -> None:
        self._parts: list[npt.NDArray[Any]] = [empty]
        self.length = 0

    def add(self, part: npt.NDArray[Any]) -> None:
        self._parts.append(part)
        self.length += len(part)

    def whole(self) -> npt.NDArray[Any]:
        if len(self._parts) == 2 and not len(self._parts[0]):  # a single chunk needs no copy
            del self._parts[0]
        elif len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]


@dataclass(slots=True)
class Trajectory:
    """A rollout so far."""

    sample: str
    prompt: Annotated[Array, doc("int32 [prompt]")]
    attempt: Annotated[int, doc("attempt of the newest request")] = 0
    position: Annotated[int, doc("position of the newest event folded in, which is the fence of the next")] = 0
    spans: Annotated[tuple[WeightSpan, ...], doc("token ranges with the weight version that made them")] = ()
    loss_mask: Annotated[npt.NDArray[np.int8] | None, doc("int8 [response], 1: trained on; None: all ones")] = None
    stop: Annotated[StopReason | None, doc("why generation ended; None: it has not")] = None
    text: str = ""
    digest: Annotated[str, doc("`content_digest` of the response")] = ""
    rollout: Annotated[str, doc("the requested sample, if this is a further sample of its rollout")] = ""
    reused: Annotated[bool, doc("recorded by another run, or made outside")] = False
    requested_prompt: Annotated[
        Array | None, doc("prompt of the request, if the rollout ended with a different one")
    ] = None
    prompt_text: Annotated[str, doc("text of that different prompt")] = ""
    kept: Annotated[list[KeptTokens], doc("vocabulary left by top-p or top-k")] = field(
        default_factory=list, repr=False
    )
    teacher_log_probs: Annotated[Array | None, doc("float32 [response], from the reward")] = None
    credit: Annotated[Array | None, doc("float32 [response], factor of each token's advantage; None: 1")] = None
    experts: Annotated[RoutedExperts | None, doc("of the engine's routers; None: unknown")] = None
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
        """The oldest weight version of its tokens; 0 without tokens."""
        return min([span.version for span in self.spans], default=0)

    @property
    def newest(self) -> int:
        """The newest weight version of its tokens; 0 without tokens."""
        return max([span.version for span in self.spans], default=0)

    def progress(self, event: RolloutProgressed, fetch: Fetch) -> None:
        """Append a chunk. Raises StorageError if it does not start at the end."""
        self._keep(event, fetch)
        self.join(event.start, event.tokens, event.log_probs, fetch)
        self.spans = merge_spans(self.spans, event.spans)

    def complete(self, event: RolloutCompleted, fetch: Fetch) -> None:
        """Append the rest and complete the rollout. Raises StorageError if tokens are missing."""
        self._keep(event, fetch)
        self.join(event.start, event.tokens, event.log_probs, fetch)
        if self.length != event.length:
            raise StorageError(f"rollout {self.sample} has {event.length} tokens, but the log has {self.length}")
        self.spans, self.stop, self.text, self.digest = event.spans, event.stop, event.text, event.digest
        self.reused = event.origin is not None
        if event.loss_mask is not None:
            self.loss_mask = fetch(event.loss_mask)
        self.credit, self.experts = event.credit, event.experts
        if event.prompt is not None:
            self.requested_prompt, self.prompt, self.prompt_text = self.prompt, event.prompt, event.prompt_text

    def _keep(self, event: RolloutProgressed | RolloutCompleted, fetch: Fetch) -> None:
        if event.kept is not None and event.kept_log_probs is not None:
            self.kept.append(KeptTokens(event.start, fetch(event.kept), fetch(event.kept_log_probs)))

    def join(self, start: int, tokens: Array, log_probs: Array, fetch: Fetch) -> None:
        """Append tokens. Raises StorageError if they do not start at the end."""
        if start != self.length or tokens.n != log_probs.n:
            raise StorageError(
                f"rollout {self.sample}: a chunk of {tokens.n} tokens and {log_probs.n} log-probs starts at {start}, "
                f"but the log has {self.length} tokens before it"
            )
        if tokens.n:
            self._tokens.add(fetch(tokens))
            self._log_probs.add(fetch(log_probs))


FOLDED = (RolloutRequested, RolloutProgressed, RolloutCompleted, RolloutFailed, RolloutSuspended)
"""The event types that trajectories are folded from."""


class Trajectories:
    """Requested rollouts and their further samples, by sample id."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self.by_sample: dict[str, Trajectory] = {}

    def apply(self, event: object, position: int) -> None:
        """Fold an event in. Types outside `FOLDED` are ignored, except rewards with a teacher's log-probs."""
        if isinstance(event, RolloutRequested):
            requested = self.by_sample.setdefault(event.sample, Trajectory(event.sample, event.prompt))
            requested.attempt, requested.position = event.attempt, position
        elif isinstance(event, RewardAssigned):
            if event.teacher_log_probs is not None and (graded := self.by_sample.get(event.sample)) is not None:
                graded.teacher_log_probs = event.teacher_log_probs
        elif isinstance(event, FOLDED):
            trajectory = self.by_sample.get(event.sample)
            if trajectory is None and isinstance(event, RolloutCompleted):
                trajectory = self._sibling(event)
            if trajectory is None:
                return
            if isinstance(event, RolloutProgressed):
                if event.turn is None:  # the completion of a rollout with turns has all tokens
                    trajectory.progress(event, self._fetch)
            elif isinstance(event, RolloutCompleted):
                trajectory.complete(event, self._fetch)
            trajectory.position = position

    def _sibling(self, event: RolloutCompleted) -> Trajectory | None:
        """Return a new trajectory for a further sample of a requested rollout; None if it was not requested."""
        requested = self.by_sample.get(event.rollout)
        if requested is None:
            return None
        prompt = requested.requested_prompt or requested.prompt  # its completion may replace the prompt
        sibling = Trajectory(event.sample, prompt, attempt=event.attempt, rollout=event.rollout)
        self.by_sample[event.sample] = sibling
        return sibling

    def forget(self, samples: tuple[str, ...]) -> None:
        """Release samples after their last use."""
        for sample in samples:
            self.by_sample.pop(sample, None)


async def read_trajectory(log: Readable, sample: str, fetch: Fetch) -> Trajectory:
    """Return a sample's trajectory so far. Raises RunNotFound, BlobMissing or StorageError."""
    folded = Trajectories(fetch)
    for name in dict.fromkeys((requested_sample(sample), sample)):
        async for recorded in log.read(subject=about(log.run, "rollout", name)):
            folded.apply(recorded.envelope.event, recorded.position)
    if sample not in folded.by_sample:
        raise RunNotFound(f"run {log.run} has no rollout of sample {sample!r}")
    return folded.by_sample[sample]


def merge_spans(spans: tuple[WeightSpan, ...], more: tuple[WeightSpan, ...]) -> tuple[WeightSpan, ...]:
    """Return the spans in order, with adjacent spans of the same version merged."""
    merged = list(spans)
    for span in more:
        if merged and merged[-1].version == span.version and merged[-1].end == span.start:
            merged[-1] = WeightSpan(merged[-1].start, span.end, span.version)
        elif span.end > span.start:
            merged.append(span)
    return tuple(merged)


def mask_older_versions(spans: tuple[WeightSpan, ...], length: int) -> npt.NDArray[np.int8] | None:
    """Return a loss mask, int8 [length], with 0 on tokens older than the last span's version; None if none are."""
    older = [span for span in spans if span.version < spans[-1].version]
    if not older:
        return None
    mask = np.ones(length, np.int8)
    for span in older:
        mask[span.start : span.end] = 0
    return mask


def content_digest(tokens: npt.NDArray[np.int32], log_probs: npt.NDArray[np.float32]) -> str:
    """Return the sha256 of the response's token bytes and log-prob bytes, little-endian, as hex."""
    digest = hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes())
    digest.update(np.ascontiguousarray(log_probs, dtype="<f4").tobytes())
    return digest.hexdigest()
