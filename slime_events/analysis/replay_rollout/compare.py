"""What an engine gave for a recorded rollout, compared with the log. Pure."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.rollouts import StopReason, WeightSpan
from slime_events.analysis.replay_rollout.recorded import RecordedRollout

Decode = Callable[[int], str]
Tokens = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]


class SpanTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine gave for one span. tokens: int32, log_probs: float32, from the span's start on. stop: how it
    ended; None where it was cut at the span's length.
    """

    span: WeightSpan
    tokens: Tokens
    log_probs: LogProbs
    stop: StopReason | None = None


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token at the position where two rollouts diverge. token: null for the end of the response."""

    token: int | None
    text: str
    log_prob: float | None


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """position: of the first different token, in the response."""

    position: int
    recorded: Token
    replayed: Token


class SpanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens [start, end) of weight version `version`. same: tokens up to the divergence.

    max_difference, mean_difference: of the log-probs of those, in nats; at: where it is largest.
    """

    start: int
    end: int
    version: int
    same: int
    max_difference: float
    mean_difference: float
    at: int | None
    divergence: Divergence | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Of a whole rollout. forced: the engine was fed the recorded tokens, and only log-probs are compared.

    equal: no divergence, and no log-prob further off than `tolerance` nats.
    """

    run: str
    sample: str
    tokens: int
    forced: bool
    tolerance: float
    equal: bool
    max_difference: float
    mean_difference: float
    divergence: Divergence | None
    spans: tuple[SpanComparison, ...]
    notes: tuple[str, ...] = ()


IN_TURNS = (
    "a generate function made it in turns: each span is replayed with the sample's own seed and sampling, so one that "
    "the function gave others diverges; --force compares the log-probs all the same"
)


def compare(
    recorded: RecordedRollout, replayed: Sequence[SpanTokens], decode: Decode, *, forced: bool, tolerance: float
) -> Comparison:
    """replayed: of the recorded spans, in order."""
    spans = tuple(_span(recorded, made, decode) for made in replayed)
    compared = sum(span.same for span in spans)
    largest = max((span.max_difference for span in spans), default=0.0)
    divergence = next((span.divergence for span in spans if span.divergence), None)
    return Comparison(
        run=recorded.run,
        sample=recorded.sample,
        tokens=len(recorded.tokens),
        forced=forced,
        tolerance=tolerance,
        equal=divergence is None and largest <= tolerance,
        max_difference=largest,
        mean_difference=sum(span.mean_difference * span.same for span in spans) / max(compared, 1),
        divergence=divergence,
        spans=spans,
        notes=(IN_TURNS,) if recorded.in_turns and not forced else (),
    )


def _span(recorded: RecordedRollout, made: SpanTokens, decode: Decode) -> SpanComparison:
    span = made.span
    tokens, log_probs = recorded.tokens[span.start : span.end], recorded.log_probs[span.start : span.end]
    count = min(len(tokens), len(made.tokens))
    other = np.flatnonzero(tokens[:count] != made.tokens[:count])
    same = int(other[0]) if len(other) else count
    off = np.abs(made.log_probs[:same].astype(np.float64) - log_probs[:same])
    return SpanComparison(
        start=span.start,
        end=span.end,
        version=span.version,
        same=same,
        max_difference=float(off.max()) if same else 0.0,
        mean_difference=float(off.mean()) if same else 0.0,
        at=span.start + int(off.argmax()) if same and off.max() > 0 else None,
        divergence=_divergence(recorded, made, same, decode),
    )


def _divergence(recorded: RecordedRollout, made: SpanTokens, same: int, decode: Decode) -> Divergence | None:
    """At the first other token, or where one goes on and the other does not."""
    span = made.span
    end = span.end - span.start
    if same == end == len(made.tokens) and (not recorded.ends(span) or made.stop in (None, recorded.stop)):
        return None
    return Divergence(
        position=span.start + same,
        recorded=_token(recorded.tokens[: span.end], recorded.log_probs, span.start + same, recorded.stop, decode),
        replayed=_token(made.tokens, made.log_probs, same, made.stop, decode),
    )


def _token(tokens: Tokens, log_probs: LogProbs, place: int, stop: StopReason | None, decode: Decode) -> Token:
    if place >= len(tokens):
        return Token(token=None, text=f"the end ({stop or 'not yet'})", log_prob=None)
    return Token(token=int(tokens[place]), text=decode(int(tokens[place])), log_prob=float(log_probs[place]))
