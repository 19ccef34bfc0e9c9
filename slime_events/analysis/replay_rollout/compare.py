"""What an engine gave for a recorded rollout, beside what the log has. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.rollouts import StopReason, WeightSpan
from slime_events.analysis.replay_rollout.recorded import RecordedRollout

Decode = Callable[[int], str]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """What came for one span. tokens: int32, log_probs: float32, from the span's start on. stop: how it ended, where it
    did; None where it was ended when all was there.
    """

    span: WeightSpan
    tokens: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    stop: StopReason | None = None


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token at the place where two rollouts part. token: null for the end of the response."""

    token: int | None
    text: str
    log_prob: float | None


class Parting(msgspec.Struct, frozen=True, kw_only=True):
    """position: of the first token, in the response, that is another one."""

    position: int
    recorded: Token
    replayed: Token


class SpanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [start, end) of weight version `version`. same: tokens up to the parting.

    max_difference, mean_difference: of the log-probs of those, in nats; at: where it is largest.
    """

    start: int
    end: int
    version: int
    same: int
    max_difference: float
    mean_difference: float
    at: int | None
    parting: Parting | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. forced: the engine was fed the recorded tokens, and only log-probs are compared.

    equal: no parting, and no log-prob further off than `tolerance` nats.
    """

    run: str
    sample: str
    tokens: int
    forced: bool
    tolerance: float
    equal: bool
    max_difference: float
    mean_difference: float
    parting: Parting | None
    spans: tuple[SpanComparison, ...]
    notes: tuple[str, ...] = ()


IN_TURNS = (
    "a generate function made it in turns: each stretch is asked for with the sample's own seed and sampling, so one "
    "that the function gave others parts; --force compares the log-probs all the same"
)


def compare(
    recorded: RecordedRollout, stretches: Sequence[Stretch], decode: Decode, *, forced: bool, tolerance: float
) -> Comparison:
    """The stretches are of the recorded spans, in order."""
    spans = tuple(_span(recorded, stretch, decode) for stretch in stretches)
    compared = sum(span.same for span in spans)
    largest = max((span.max_difference for span in spans), default=0.0)
    parting = next((span.parting for span in spans if span.parting), None)
    return Comparison(
        run=recorded.run,
        sample=recorded.sample,
        tokens=len(recorded.tokens),
        forced=forced,
        tolerance=tolerance,
        equal=parting is None and largest <= tolerance,
        max_difference=largest,
        mean_difference=sum(span.mean_difference * span.same for span in spans) / max(compared, 1),
        parting=parting,
        spans=spans,
        notes=(IN_TURNS,) if recorded.in_turns and not forced else (),
    )


def _span(recorded: RecordedRollout, stretch: Stretch, decode: Decode) -> SpanComparison:
    span = stretch.span
    tokens, log_probs = recorded.tokens[span.start : span.end], recorded.log_probs[span.start : span.end]
    count = min(len(tokens), len(stretch.tokens))
    other = np.flatnonzero(tokens[:count] != stretch.tokens[:count])
    same = int(other[0]) if len(other) else count
    off = np.abs(stretch.log_probs[:same].astype(np.float64) - log_probs[:same])
    return SpanComparison(
        start=span.start,
        end=span.end,
        version=span.version,
        same=same,
        max_difference=float(off.max()) if same else 0.0,
        mean_difference=float(off.mean()) if same else 0.0,
        at=span.start + int(off.argmax()) if same and off.max() > 0 else None,
        parting=_parting(recorded, stretch, same, decode),
    )


def _parting(recorded: RecordedRollout, stretch: Stretch, same: int, decode: Decode) -> Parting | None:
    """At the first other token, or where one goes on and the other does not."""
    span = stretch.span
    end = span.end - span.start
    if same == end and len(stretch.tokens) == end:
        ended_as_recorded = not recorded.ends(span) or stretch.stop in (None, recorded.stop)
        if ended_as_recorded:
            return None
    return Parting(
        position=span.start + same,
        recorded=_token(recorded.tokens[: span.end], recorded.log_probs, span.start + same, recorded.stop, decode),
        replayed=_token(stretch.tokens, stretch.log_probs, same, stretch.stop, decode),
    )


def _token(
    tokens: npt.NDArray[np.int32],
    log_probs: npt.NDArray[np.float32],
    place: int,
    stop: StopReason | None,
    decode: Decode,
) -> Token:
    if place >= len(tokens):
        return Token(token=None, text=f"the end ({stop or 'not yet'})", log_prob=None)
    return Token(token=int(tokens[place]), text=decode(int(tokens[place])), log_prob=float(log_probs[place]))
