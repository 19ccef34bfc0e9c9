"""Comparison of an engine's replay of a rollout with the log. Pure."""

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.doc import doc
from schemas.rollouts import StopReason, WeightSpan
from slime_events.analysis.replay_rollout.recorded import RecordedRollout

Decode = Callable[[int], str]
Tokens = npt.NDArray[np.int32]
LogProbs = npt.NDArray[np.float32]


class SpanTokens(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's output for one span."""

    span: Annotated[WeightSpan, doc("the recorded span")]
    tokens: Annotated[Tokens, doc("generated tokens, int32, from the span's start on")]
    log_probs: Annotated[LogProbs, doc("their log-probs, float32 [nats]")]
    stop: Annotated[StopReason | None, doc("how the generation ended; None if it was cut at the span's length")] = None


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token at the position at which two rollouts diverge."""

    token: Annotated[int | None, doc("id of the token; null for the end of the response")]
    text: Annotated[str, doc("its text")]
    log_prob: Annotated[float | None, doc("its log-prob [nats]; null for the end")]


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """Point at which a replay leaves the recorded rollout."""

    position: Annotated[int, doc("index in the response of the first different token")]
    recorded: Annotated[Token, doc("recorded token")]
    replayed: Annotated[Token, doc("replayed token")]


class SpanComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one span."""

    start: Annotated[int, doc("index of its first token")]
    end: Annotated[int, doc("end of the span")]
    version: Annotated[int, doc("weight version that made it")]
    same: Annotated[int, doc("number of tokens before the divergence")]
    max_difference: Annotated[float, doc("largest difference of their log-probs [nats]")]
    mean_difference: Annotated[float, doc("mean difference of their log-probs [nats]")]
    at: Annotated[int | None, doc("index of the token with the largest difference")]
    divergence: Annotated[Divergence | None, doc("where the replay diverges; None if it does not")]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of a whole rollout."""

    run: Annotated[str, doc("run that has the rollout")]
    sample: Annotated[str, doc("id of the sample")]
    tokens: Annotated[int, doc("response length [tokens]")]
    forced: Annotated[bool, doc("whether the engine got the recorded tokens, so that only log-probs are compared")]
    tolerance: Annotated[float, doc("largest difference of a log-prob that counts as equal [nats]")]
    equal: Annotated[bool, doc("whether there is no divergence, and no log-prob differs by more than `tolerance`")]
    max_difference: Annotated[float, doc("largest difference of a log-prob [nats]")]
    mean_difference: Annotated[float, doc("mean difference of the log-probs [nats]")]
    divergence: Annotated[Divergence | None, doc("the first divergence; None if there is none")]
    spans: Annotated[tuple[SpanComparison, ...], doc("comparisons of the spans")]
    notes: Annotated[tuple[str, ...], doc("remarks, one sentence each")] = ()


IN_TURNS = (
    "a generate function made it in turns. Each span is replayed with the sample's own seed and sampling, so a span "
    "with different ones diverges. --force compares the log-probs in any case"
)


def compare(
    recorded: RecordedRollout, replayed: Sequence[SpanTokens], decode: Decode, *, forced: bool, tolerance: float
) -> Comparison:
    """Compare a rollout with its replay. replayed: one per recorded span, in order."""
    spans = tuple(_span(recorded, output, decode) for output in replayed)
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


def _span(recorded: RecordedRollout, output: SpanTokens, decode: Decode) -> SpanComparison:
    span = output.span
    tokens, log_probs = recorded.tokens[span.start : span.end], recorded.log_probs[span.start : span.end]
    count = min(len(tokens), len(output.tokens))
    other = np.flatnonzero(tokens[:count] != output.tokens[:count])
    same = int(other[0]) if len(other) else count
    off = np.abs(output.log_probs[:same].astype(np.float64) - log_probs[:same])
    return SpanComparison(
        start=span.start,
        end=span.end,
        version=span.version,
        same=same,
        max_difference=float(off.max()) if same else 0.0,
        mean_difference=float(off.mean()) if same else 0.0,
        at=span.start + int(off.argmax()) if same and off.max() > 0 else None,
        divergence=_divergence(recorded, output, same, decode),
    )


def _divergence(recorded: RecordedRollout, output: SpanTokens, same: int, decode: Decode) -> Divergence | None:
    """Return the first different token, or the point at which only one of the two continues."""
    span = output.span
    end = span.end - span.start
    if same == end == len(output.tokens) and (not recorded.ends(span) or output.stop in (None, recorded.stop)):
        return None
    return Divergence(
        position=span.start + same,
        recorded=_token(recorded.tokens[: span.end], recorded.log_probs, span.start + same, recorded.stop, decode),
        replayed=_token(output.tokens, output.log_probs, same, output.stop, decode),
    )


def _token(tokens: Tokens, log_probs: LogProbs, index: int, stop: StopReason | None, decode: Decode) -> Token:
    if index >= len(tokens):
        return Token(token=None, text=f"the end ({stop or 'not yet'})", log_prob=None)
    return Token(token=int(tokens[index]), text=decode(int(tokens[index])), log_prob=float(log_probs[index]))
