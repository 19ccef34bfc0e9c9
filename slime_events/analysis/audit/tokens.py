"""Tokens: do a rollout's chunks join end to end, and is what was completed what the log holds?"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from schemas.arrays import Array
from schemas.errors import DamagedEvent, StorageError
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutSuspended, WeightSpan
from schemas.turns import TurnRecorded, TurnRole
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Ledger
from slime_events.core.trajectory import merge_spans

Fetch = Callable[[Array], npt.NDArray[Any]]
Ended = RolloutCompleted | TurnRecorded
ITEM_BYTES = {"int32": 4, "float32": 4, "int8": 1}


@dataclass(slots=True)
class _Open:
    """A rollout (or one turn of it) so far. unseen: some of its arrays lie in blobs that were not fetched."""

    length: int = 0
    tokens: list[bytes] = field(default_factory=list)
    log_probs: list[bytes] = field(default_factory=list)
    spans: tuple[WeightSpan, ...] = ()
    unseen: bool = False


class Tokens(Check):
    """fetch: an array's numbers out of the blob store, verified; None leaves blobs unseen."""

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
            wrong = f"it is suspended with {event.length} tokens, and the log holds {parts[None].length}"
            self.find(wrong, "the rollout does not go on from what it had")

    def _on_rollout_progressed(self, event: RolloutProgressed) -> None:
        self.seen["chunks"] += 1
        self.seen["tokens"] += event.tokens.n
        known = self._open.setdefault(event.sample, {}).setdefault(event.turn, _Open())
        self._join(known, event)
        end = event.start + event.tokens.n
        if _gaps(event.spans, event.start, end):
            wrong = f"its weight versions do not cover tokens {event.start} to {end}"
            self.find(wrong, "nobody knows which weights made which token")
        known.spans = merge_spans(known.spans, event.spans)

    def _join(self, known: _Open, event: RolloutProgressed | Ended) -> None:
        if event.start != known.length:
            missing = event.start - known.length
            what = f"{missing} tokens are missing" if missing > 0 else f"{-missing} tokens are there twice"
            self.find(f"it starts at token {event.start}, and the log holds {known.length} before it", what)
        if event.tokens.n != event.log_probs.n:
            wrong = f"it has {event.tokens.n} tokens and {event.log_probs.n} log-probs"
            self.find(wrong, "log-probs are not those of the tokens")
        for parts, array in ((known.tokens, event.tokens), (known.log_probs, event.log_probs)):
            data = self._data(array)
            known.unseen = known.unseen or data is None
            parts.append(data or b"")
        known.length = event.start + event.tokens.n

    def _data(self, array: Array) -> bytes | None:
        """The array's bytes; None where they cannot be looked at."""
        if array.blob is None:
            if len(array.data) != array.n * ITEM_BYTES[array.dtype]:
                wrong = f"it says {array.n} x {array.dtype} and holds {len(array.data)} bytes"
                self.find(wrong, "tokens or log-probs of the sample are lost")
            return array.data
        self.seen["blobs"] += 1
        if self._fetch is None:
            return None
        try:
            return self._fetch(array).tobytes()
        except (StorageError, DamagedEvent) as error:
            self.find(str(error), "tokens or log-probs of the sample are lost")
            return None

    def _end(self, known: _Open, event: Ended) -> None:
        """What holds at the end of a rollout and of a turn's generation."""
        before = known.length
        self._join(known, event)
        if _upto(event.spans, before) != known.spans:
            wrong = f"its weight versions over the first {before} tokens are not those of its chunks"
            self.find(wrong, "staleness and masks of the sample are wrong")
        if known.length != event.length:
            wrong = f"it says {event.length} tokens, and the log holds {known.length}"
            self.find(wrong, "the sample cannot be trained on as it was made")

    def _on_rollout_completed(self, event: RolloutCompleted) -> None:
        self.seen["rollouts"] += 1
        # The completion of a rollout with turns holds all of its tokens again.
        known = self._open.pop(event.sample, {}).pop(None, _Open())
        self.seen["tokens"] += event.tokens.n
        self._end(known, event)
        sample = self.ledger.samples.get(event.rollout or event.sample)
        asked = sample.prompt_length if sample is not None else event.prompt_length
        if event.prompt_length != (asked if event.prompt is None else event.prompt.n):
            wrong = f"it answers a prompt of {event.prompt_length} tokens, and {asked} were asked"
            self.find(wrong, "it is an answer to another prompt")
        self._mask(event, b"".join(known.log_probs))
        if known.unseen:
            self.seen["rollouts with blobs not looked at"] += 1
        elif hashlib.sha256(b"".join([*known.tokens, *known.log_probs])).hexdigest() != event.digest:
            self.find("its digest is not that of the tokens and log-probs in the log", "one of them was changed")

    def _mask(self, event: RolloutCompleted, log_probs: bytes) -> None:
        """Every token that is trained on was made by a known version, or by the generate function or somebody outside,
        without a log-prob: there the trainer takes its own.
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
                self.find(wrong, "nobody knows which weights made them")
                return


def _upto(spans: tuple[WeightSpan, ...], end: int) -> tuple[WeightSpan, ...]:
    """The spans over the first `end` tokens."""
    return tuple(WeightSpan(s.start, min(s.end, end), s.version) for s in spans if s.start < end)


def _gaps(spans: tuple[WeightSpan, ...], start: int, end: int) -> list[tuple[int, int]]:
    """What [start, end) has that no span covers; overlapping spans and spans outside leave gaps too."""
    gaps, at = [], start
    for span in spans:
        if span.start > at:
            gaps.append((at, span.start))
        if not at <= span.start <= span.end <= end:
            return [(start, end)]
        at = span.end
    return [*gaps, (at, end)] if at < end else gaps
