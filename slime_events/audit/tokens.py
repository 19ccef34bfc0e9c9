"""Tokens: do a rollout's chunks join end to end, and is what was completed what the log holds?"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from schemas.arrays import Array
from schemas.errors import DamagedEvent, StorageError
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutSuspended, WeightSpan
from slime_events.audit.check import Check, Counts
from slime_events.audit.ledger import Ledger
from slime_events.trajectory import merge_spans
from storage.log import Recorded

Fetch = Callable[[Array], npt.NDArray[Any]]
ITEM_BYTES = {"int32": 4, "float32": 4, "int8": 1}


@dataclass(slots=True)
class _Open:
    """A rollout so far. unseen: some of its arrays lie in blobs that were not fetched."""

    length: int = 0
    tokens: list[bytes] = field(default_factory=list)
    log_probs: list[bytes] = field(default_factory=list)
    spans: tuple[WeightSpan, ...] = ()
    unseen: bool = False

    def digest(self) -> str:
        return hashlib.sha256(b"".join([*self.tokens, *self.log_probs])).hexdigest()


class Tokens(Check):
    """fetch: an array's numbers out of the blob store, verified; None leaves blobs unseen."""

    name = "tokens"
    promise = "chunks join end to end, digests recomputed from tokens and log-probs, blobs verified"
    hears = (RolloutProgressed, RolloutCompleted, RolloutSuspended)

    def __init__(self, ledger: Ledger, fetch: Fetch | None = None) -> None:
        super().__init__(ledger)
        self._fetch = fetch
        self._open: dict[str, _Open] = {}
        self._completed = self._chunks = self._tokens = self._blobs = self._unseen = 0

    def apply(self, recorded: Recorded) -> None:
        event = recorded.envelope.event
        if isinstance(event, RolloutProgressed):
            self._chunks += 1
            known = self._open.setdefault(event.sample, _Open())
            self._join(recorded, known, event)
            self._spans(recorded, event.spans, event.start, event.start + event.tokens.n)
            known.spans = merge_spans(known.spans, event.spans)
        elif isinstance(event, RolloutCompleted):
            self._completed += 1
            self._complete(recorded, self._open.pop(event.sample, _Open()), event)
        elif isinstance(event, RolloutSuspended):
            length = self._open.get(event.sample, _Open()).length
            if event.length != length:
                wrong = f"it rests with {event.length} tokens, and the log holds {length}"
                self.find(recorded, wrong, "the rollout does not go on from what it had")

    def _join(self, recorded: Recorded, known: _Open, event: RolloutProgressed | RolloutCompleted) -> None:
        if event.start != known.length:
            missing = event.start - known.length
            what = f"{missing} tokens are missing" if missing > 0 else f"{-missing} tokens are there twice"
            self.find(recorded, f"it starts at token {event.start}, and the log holds {known.length} before it", what)
        if event.tokens.n != event.log_probs.n:
            wrong = f"it has {event.tokens.n} tokens and {event.log_probs.n} log-probs"
            self.find(recorded, wrong, "log-probs are not those of the tokens")
        self._keep(recorded, known, known.tokens, event.tokens)
        self._keep(recorded, known, known.log_probs, event.log_probs)
        known.length = event.start + event.tokens.n
        self._tokens += event.tokens.n

    def _keep(self, recorded: Recorded, known: _Open, parts: list[bytes], array: Array) -> None:
        data = array.data
        if array.blob is not None:
            self._blobs += 1
            if self._fetch is None:
                known.unseen = True
                return
            try:
                data = self._fetch(array).tobytes()
            except (StorageError, DamagedEvent) as error:
                self.find(recorded, str(error), "tokens or log-probs of the sample are lost")
                known.unseen = True
                return
        elif len(data) != array.n * ITEM_BYTES[array.dtype]:
            wrong = f"it says {array.n} x {array.dtype} and holds {len(data)} bytes"
            self.find(recorded, wrong, "tokens or log-probs of the sample are lost")
        parts.append(data)

    def _complete(self, recorded: Recorded, known: _Open, event: RolloutCompleted) -> None:
        before = known.length
        self._join(recorded, known, event)
        self._spans(recorded, event.spans, 0, event.length)
        if _upto(event.spans, before) != known.spans:
            wrong = f"its weight versions over the first {before} tokens are not those of its chunks"
            self.find(recorded, wrong, "staleness and masks of the sample are wrong")
        if known.length != event.length:
            wrong = f"it says {event.length} tokens, and the log holds {known.length}"
            self.find(recorded, wrong, "the sample cannot be trained on as it was made")
        sample = self.ledger.samples.get(event.sample)
        if sample is not None and sample.prompt_length != event.prompt_length:
            wrong = f"it answers a prompt of {event.prompt_length} tokens, and {sample.prompt_length} were asked"
            self.find(recorded, wrong, "it is an answer to another prompt")
        if event.loss_mask is not None and event.loss_mask.n != event.length:
            wrong = f"its loss mask has {event.loss_mask.n} entries for {event.length} tokens"
            self.find(recorded, wrong, "the sample cannot be trained on")
        if known.unseen:
            self._unseen += 1
        elif known.digest() != event.digest:
            wrong = "its digest is not that of the tokens and log-probs in the log"
            self.find(recorded, wrong, "one of them was changed")

    def _spans(self, recorded: Recorded, spans: tuple[WeightSpan, ...], start: int, end: int) -> None:
        at, version = start, -1
        for span in spans:
            if span.start != at or span.version < version:
                break
            at, version = span.end, span.version
        if at != end:
            wrong = f"its weight versions do not cover tokens {start} to {end} in rising order"
            self.find(recorded, wrong, "nobody knows which weights made which token")

    def counts(self) -> Counts:
        return {
            "rollouts": self._completed,
            "chunks": self._chunks,
            "tokens": self._tokens,
            "blobs": self._blobs,
            "rollouts with blobs not looked at": self._unseen,
        }


def _upto(spans: tuple[WeightSpan, ...], end: int) -> tuple[WeightSpan, ...]:
    """The spans over the first `end` tokens."""
    return tuple(WeightSpan(s.start, min(s.end, end), s.version) for s in spans if s.start < end)
