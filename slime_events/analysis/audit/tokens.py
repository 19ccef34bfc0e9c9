"""Tokens: a rollout's chunks join end to end, and its completion matches the log."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy.typing as npt

from schemas.arrays import Array
from schemas.doc import doc
from schemas.errors import DamagedEvent, StorageError
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutSuspended, WeightSpan
from schemas.turns import TurnRecorded, TurnRole
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.core.tokens.trajectory import merge_spans

Fetch = Callable[[Array], npt.NDArray[Any]]
Ended = RolloutCompleted | TurnRecorded
LOST = "tokens, log-probs or experts of the sample are lost"
ITEM_BYTES = {"int32": 4, "float32": 4, "int8": 1, "uint8": 1, "uint16": 2}


@dataclass(slots=True)
class _Open:
    """A rollout, or one turn of it, so far."""

    length: Annotated[int, doc("tokens so far")] = 0
    tokens: Annotated[list[bytes], doc("bytes of the tokens, per event")] = field(default_factory=list)
    log_probs: Annotated[list[bytes], doc("bytes of the log-probs, per event")] = field(default_factory=list)
    spans: Annotated[tuple[WeightSpan, ...], doc("weight versions over the tokens")] = ()
    unseen: Annotated[bool, doc("whether some of the arrays are in blobs that were not fetched")] = False


class Tokens(Check):
    """Checks token arrays. fetch: reads and verifies an array in the blob store; None: blobs are not checked."""

    name = "tokens"
    promise = "chunks join end to end, digests recomputed from tokens and log-probs, blobs verified"
    counted = ("rollouts", "turns", "chunks", "tokens", "blobs", "rollouts with blobs not looked at")

    def __init__(self, ledger: Ledger, fetch: Fetch | None = None) -> None:
        super().__init__(ledger)
        self._fetch = fetch
        self._open: dict[str, dict[int | None, _Open]] = {}

    def _on_turn_recorded(self, event: TurnRecorded) -> None:
        self.seen["turns"] += 1
        if event.role is TurnRole.ASSISTANT:
            parts = self._open.setdefault(event.sample, {})
            self._end(parts.pop(event.index, _Open()), event)

    def _on_rollout_suspended(self, event: RolloutSuspended) -> None:
        parts = self._open.get(event.sample, {None: _Open()})
        if None in parts and event.length != parts[None].length:
            wrong = f"it has {event.length} tokens, and the log holds {parts[None].length}"
            self.find(wrong, "the rollout does not continue where it was")

    def _on_rollout_progressed(self, event: RolloutProgressed) -> None:
        self.seen["chunks"] += 1
        self.seen["tokens"] += event.tokens.n
        rollout = self._open.setdefault(event.sample, {}).setdefault(event.turn, _Open())
        self._join(rollout, event)
        end = event.start + event.tokens.n
        if _gaps(event.spans, event.start, end):
            wrong = f"its weight versions do not cover tokens {event.start} to {end}"
            self.find(wrong, "the weights of some tokens are unknown")
        rollout.spans = merge_spans(rollout.spans, event.spans)

    def _join(self, rollout: _Open, event: RolloutProgressed | Ended) -> None:
        if event.start != rollout.length:
            missing = event.start - rollout.length
            what = f"{missing} tokens are missing" if missing > 0 else f"{-missing} tokens are stored twice"
            self.find(f"it starts at token {event.start}, and the log holds {rollout.length} before it", what)
        if event.tokens.n != event.log_probs.n:
            wrong = f"it has {event.tokens.n} tokens and {event.log_probs.n} log-probs"
            self.find(wrong, "log-probs are not those of the tokens")
        for parts, array in ((rollout.tokens, event.tokens), (rollout.log_probs, event.log_probs)):
            data = self._data(array)
            rollout.unseen = rollout.unseen or data is None
            parts.append(data or b"")
        rollout.length = event.start + event.tokens.n

    def _data(self, array: Array) -> bytes | None:
        """Return the array's bytes; None if they cannot be read."""
        if array.blob is None:
            if len(array.data) != array.n * ITEM_BYTES[array.dtype]:
                wrong = f"it declares {array.n} x {array.dtype} and holds {len(array.data)} bytes"
                self.find(wrong, LOST)
            return array.data
        self.seen["blobs"] += 1
        if self._fetch is None:
            return None
        try:
            return self._fetch(array).tobytes()
        except (StorageError, DamagedEvent) as error:
            self.find(str(error), LOST)
            return None

    def _end(self, rollout: _Open, event: Ended) -> None:
        """Check the end of a rollout, or of a turn's generation."""
        before = rollout.length
        self._join(rollout, event)
        if _upto(event.spans, before) != rollout.spans:
            wrong = f"its weight versions over the first {before} tokens are not those of its chunks"
            self.find(wrong, "staleness and masks of the sample are wrong")
        if rollout.length != event.length:
            wrong = f"it has {event.length} tokens, and the log holds {rollout.length}"
            self.find(wrong, "the sample cannot be trained on as it was made")

    def _on_rollout_completed(self, event: RolloutCompleted) -> None:
        self.seen["rollouts"] += 1
        # The completion of a rollout with turns holds all of its tokens again.
        rollout = self._open.pop(event.sample, {}).pop(None, _Open())
        self.seen["tokens"] += event.tokens.n
        self._end(rollout, event)
        sample = self.ledger.samples.get(event.rollout or event.sample)
        expected = sample.prompt_length if sample is not None else event.prompt_length
        if event.prompt_length != (expected if event.prompt is None else event.prompt.n):
            wrong = f"its prompt has {event.prompt_length} tokens, and the requested one {expected}"
            self.find(wrong, "it is an answer to another prompt")
        self._mask(event, b"".join(rollout.log_probs))
        self._experts(event)
        if rollout.unseen:
            self.seen["rollouts with blobs not looked at"] += 1
        elif hashlib.sha256(b"".join([*rollout.tokens, *rollout.log_probs])).hexdigest() != event.digest:
            self.find("its digest is not that of the tokens and log-probs in the log", "one of these was changed")

    def _mask(self, event: RolloutCompleted, log_probs: bytes) -> None:
        """Check that a known version made every token that is trained on. Tokens of a generate function or from outside
        need none if they have no log-prob: the trainer computes it.
        """
        data = None if event.loss_mask is None else self._data(event.loss_mask)
        if event.loss_mask is not None and event.loss_mask.n != event.length:
            wrong = f"its loss mask has {event.loss_mask.n} entries for {event.length} tokens"
            self.find(wrong, "the sample cannot be trained on")
            return
        is_ours = not event.functions and (event.origin is None or event.origin.sample != event.sample)
        for start, end in _gaps(event.spans, 0, event.length):
            trained = [at for at in range(start, end) if event.loss_mask is None or (data is not None and data[at])]
            if trained and (is_ours or any(any(log_probs[4 * at : 4 * at + 4]) for at in trained)):
                wrong = f"its weight versions do not cover tokens {start} to {end}, which are trained on"
                self.find(wrong, "the weights of these tokens are unknown")
                return

    def _experts(self, event: RolloutCompleted) -> None:
        """Check that the engine's experts are those of the first tokens."""
        experts = event.experts
        if experts is None:
            return
        self._data(experts.ids)
        each, tokens = experts.layers * experts.each, event.prompt_length + event.length
        if experts.layers < 1 or experts.each < 1 or experts.ids.n % each or experts.ids.n > tokens * each:
            wrong = (
                f"its {experts.ids.n} experts are not {experts.each} in each of {experts.layers} layers for up to "
                f"{tokens} tokens"
            )
            self.find(wrong, "the sample cannot be trained on with the engine's experts")


def _upto(spans: tuple[WeightSpan, ...], end: int) -> tuple[WeightSpan, ...]:
    """Return the spans over the first `end` tokens."""
    return tuple(WeightSpan(s.start, min(s.end, end), s.version) for s in spans if s.start < end)


def _gaps(spans: tuple[WeightSpan, ...], start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of [start, end) that no span covers. Overlapping spans and spans outside leave gaps too."""
    gaps, at = [], start
    for span in spans:
        if span.start > at:
            gaps.append((at, span.start))
        if not at <= span.start <= span.end <= end:
            return [(start, end)]
        at = span.end
    return [*gaps, (at, end)] if at < end else gaps
