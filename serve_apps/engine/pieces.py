"""SGLang's words and ours: sampling parameters, weight spans, a stop string across a seam."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from schemas.rollouts import Sampling, StopReason, WeightSpan
from serve_apps.engine import messages


def sampling_parameters(frame: messages.Generate, resumed: int) -> dict[str, Any]:
    """SGLang's, of what is left to generate after `resumed` tokens."""
    sampling = frame.sampling
    return {
        "max_new_tokens": sampling.max_new_tokens - resumed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "skip_special_tokens": sampling.skip_special_tokens,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        "sampling_seed": frame.seed,
    }


def how_it_ended(
    response: list[int], sampling: Sampling, end_tokens: Collection[int], decode: Callable[[list[int]], str]
) -> StopReason | None:
    """How a whole response has ended by itself; None where there is more to be generated.

    SGLang says of one that ends in the very step in which it is aborted that it was aborted. Gone on with, it would
    have tokens behind its end. end_tokens: of the model, beside those of the sampling.
    """
    if response and (response[-1] in end_tokens or response[-1] in sampling.stop_token_ids):
        return StopReason.STOP
    if sampling.stop and response:
        text = decode(response[-4 * max(map(len, sampling.stop)) :])  # a token is at least one byte
        if any(found in text for found in sampling.stop):
            return StopReason.STOP
    return StopReason.LENGTH if len(response) >= sampling.max_new_tokens else None


def spans_within(versions: list[dict[str, Any]], resumed: int, start: int, end: int) -> tuple[WeightSpan, ...]:
    """SGLang's spans, counted from the first new token, cut to response positions [start, end)."""
    spans = (
        WeightSpan(max(start, v["start"] + resumed), min(end, v["end"] + resumed), int(v["version"])) for v in versions
    )
    return tuple(span for span in spans if span.start < span.end)


def kept_at_seam(
    resumed: list[int], new: list[int], seen: int, stop: tuple[str, ...], decode: Callable[[list[int]], str]
) -> int | None:
    """How many of new[seen:] to keep where a stop string lies across the seam of resumed | new; None where none does.

    A token is at least one byte and a character at most four, so the string cannot reach further than that.
    """
    reach = 4 * max(map(len, stop))
    before = resumed[-reach:]
    for end in range(seen + 1, min(reach, len(new)) + 1):
        text = decode(before + new[:end])
        if any(found in text and found not in decode(new[:end]) for found in stop):
            return end - seen
    return None
