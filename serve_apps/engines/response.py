"""`Response`: one response that SGLang generates, from its request to its deltas. It does not import SGLang."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import numpy as np

from schemas.rollouts import Sampling, StopReason, WeightSpan
from serve_apps.engines.engine import Delta, GenerateRequest, LogProbs, Tokens, sampling_params
from serve_apps.engines.routed_experts import ROUTED, ExpertShape
from slime_events.plugins.plain_values import plain

KNOWN_REASONS = frozenset(StopReason)
KEPT, KEPT_LOG_PROBS = "output_token_sampling_mask", "output_token_sampling_logprobs"
IN_DELTA = frozenset({"output_token_logprobs", "weight_versions", KEPT, KEPT_LOG_PROBS, f"{KEPT}_length"})
"""Entries of an answer's `meta_info` that a delta has in other fields."""
Decode = Callable[[list[int], bool], str]
"""Returns the text of tokens; the flag leaves special tokens out."""


class Response:
    """One response. `add` turns each step of SGLang into a delta.

    `name` is the response's in the engine's log. `end_tokens` are the model's, in addition to those of the sampling.
    `experts` is None if the engine does not report them.
    """

    def __init__(
        self,
        request: GenerateRequest,
        name: str,
        end_tokens: Collection[int],
        decode: Decode,
        experts: ExpertShape | None = None,
    ) -> None:
        self._request, self._name, self._end_tokens = request, name, end_tokens
        self._decode, self._experts = decode, experts if request.routes else None
        self._tokens: list[int] = request.resume.tolist()
        self.is_cut = False
        """Whether it has ended before SGLang's last step, so that SGLang has to abort it."""

    @property
    def tokens(self) -> Tokens:
        """All tokens so far, with the resumed part: int32."""
        return np.array(self._tokens, np.int32)

    def fields(self, **more: Any) -> dict[str, Any]:
        """Return the fields of SGLang's /generate, with `more`. Raises TypeError for a payload that sets one of them.

        Call it before the first step.
        """
        request, sampling = self._request, self._request.sampling
        rest = {"max_new_tokens": request.left, "sampling_seed": request.seed}
        if sampling.min_new_tokens:
            rest["min_new_tokens"] = max(0, sampling.min_new_tokens - len(self._tokens))
        return dict(
            input_ids=request.prompt.tolist() + self._tokens,
            sampling_params=sampling_params(sampling) | rest,
            return_logprob=True,
            return_sampling_mask=request.keeps,
            stream=True,
            **more,
            **({"return_routed_experts": True} if self._experts else {}) | request.payload,
        )

    def ended(self) -> Delta | None:
        """Return the last delta if the resumed part is the whole response."""
        finish = self._how_it_ended(self._tokens)
        return None if finish is None else self.last(finish)

    def last(self, finish: StopReason) -> Delta:
        """Return a last delta without tokens."""
        return Delta(self._request.resume[:0], np.zeros(0, np.float32), (), finish, self._text(self._tokens))

    def add(self, meta: dict[str, Any], tokens: list[int], *, version: int | None, is_aborted: bool) -> Delta:
        """Return the delta of a step: its `meta_info` and its new tokens. `is_aborted`: by the caller.

        `version` is that of the weights that made the tokens; None: the step has them. Raises ValueError with SGLang's
        reason if its scheduler refuses the request.
        """
        if (refusal := refusal_of(meta)) is not None and not is_aborted:
            raise ValueError(refusal)
        request = self._request
        log_probs = [pair[0] for pair in (meta.get("output_token_logprobs") or [])[-len(tokens) :]] if tokens else []
        if len(log_probs) < len(tokens) and (meta["finish_reason"] or {}).get("type") == StopReason.ABORT:
            tokens, log_probs = [], []  # they were not sampled
        start, resumed, received = len(self._tokens), len(request.resume), len(tokens)
        reason = meta["finish_reason"]["type"] if meta["finish_reason"] else None
        finish = None if reason is None else StopReason(reason) if reason in KNOWN_REASONS else StopReason.STOP
        if finish is StopReason.ABORT:
            finish = self._how_it_ended(self._tokens + tokens) or finish
        if (kept := self._kept(tokens)) is not None:
            tokens, log_probs, finish, self.is_cut = tokens[:kept], log_probs[:kept], StopReason.STOP, True
        self._tokens.extend(tokens)
        end = start + len(tokens)
        if version is None:
            spans = spans_within(meta.get("weight_versions") or [], resumed, start, end)
        else:
            spans = (WeightSpan(start, end, version),) if tokens else ()
        text = None if finish is None else self._text(self._tokens)
        has_meta = finish is not None and (request.payload or reason not in (*KNOWN_REASONS, None))
        hidden = IN_DELTA if request.payload.get("return_routed_experts") else IN_DELTA | {ROUTED}
        more = {name: plain(value) for name, value in meta.items() if name not in hidden} if has_meta else {}
        drawn_of = kept_tokens(meta, received, len(tokens)) if request.keeps and received else ()
        delta = Delta(np.array(tokens, np.int32), np.array(log_probs, np.float32), spans, finish, text, more, *drawn_of)
        if self._experts and finish not in (None, StopReason.ABORT):
            count = len(request.prompt) + len(self._tokens)
            delta = replace(delta, experts=self._experts.of_answer(self._name, meta, count))
        return delta

    def _kept(self, tokens: list[int]) -> int | None:
        """Return how many of the new tokens to keep if a stop string crosses the end of the resumed part."""
        stop, resumed = self._request.sampling.stop, len(self._request.resume)
        if not stop or not resumed:
            return None
        new = self._tokens[resumed:] + tokens
        return kept_at_seam(self._tokens[:resumed], new, len(self._tokens) - resumed, stop, self._text)

    def _how_it_ended(self, tokens: list[int]) -> StopReason | None:
        return how_it_ended(tokens, self._request.sampling, self._end_tokens, self._text)

    def _text(self, tokens: list[int]) -> str:
        return self._decode(tokens, self._request.sampling.skip_special_tokens)


def refusal_of(meta: Mapping[str, Any]) -> str | None:
    """Return why SGLang's scheduler refuses a request, such as a grammar that does not compile; None for any other end.

    The scheduler reports a refusal as an abort, after a step with a token but no log-prob. A request that is aborted
    while it waits for its grammar ends the same way.
    """
    reason = meta["finish_reason"] or {}
    if reason.get("type") != StopReason.ABORT or reason.get("status_code") != HTTPStatus.BAD_REQUEST:
        return None
    return str(reason.get("message") or "no reason")


def kept_tokens(meta: Mapping[str, Any], received: int, count: int) -> tuple[Tokens, Tokens, LogProbs]:
    """Return the last fields of a delta, for the first `count` of the `received` tokens of a step."""
    ids = [np.sort(np.array(kept, np.int32)) for kept in meta[KEPT][-received:][:count]]
    log_probs = np.array(meta[KEPT_LOG_PROBS][-received:][:count], np.float32)
    return np.concatenate([np.empty(0, np.int32), *ids]), np.array(list(map(len, ids)), np.int32), log_probs


def how_it_ended(
    response: list[int], sampling: Sampling, end_tokens: Collection[int], decode: Callable[[list[int]], str]
) -> StopReason | None:
    """Return how a whole response has ended by itself; None if there is more to generate.

    If a response ends in the step in which it is aborted, SGLang reports it as aborted. Resumed, it would get tokens
    after its end. `end_tokens` are the model's, in addition to those of the sampling.
    """
    ends = () if sampling.more.get("ignore_eos") else end_tokens
    if response and (response[-1] in ends or response[-1] in sampling.stop_token_ids):
        return StopReason.STOP
    if sampling.stop and response:
        text = decode(response[-4 * max(map(len, sampling.stop)) :])  # a token is at least one byte
        if any(stop in text for stop in sampling.stop):
            return StopReason.STOP
    return StopReason.LENGTH if len(response) >= sampling.max_new_tokens else None


def spans_within(versions: list[dict[str, Any]], resumed: int, start: int, end: int) -> tuple[WeightSpan, ...]:
    """Cut SGLang's spans, counted from the first new token, to the response positions [start, end)."""
    spans = (
        WeightSpan(max(start, v["start"] + resumed), min(end, v["end"] + resumed), int(v["version"])) for v in versions
    )
    return tuple(span for span in spans if span.start < span.end)


def kept_at_seam(
    resumed: list[int], new: list[int], seen: int, stop: tuple[str, ...], decode: Callable[[list[int]], str]
) -> int | None:
    """Return how many of new[seen:] to keep if a stop string crosses the seam of resumed | new; None if none does.

    SGLang does not look before the seam. A token is at least one byte and a character at most four, so the string
    cannot reach further than that.
    """
    reach = 4 * max(map(len, stop))
    before = resumed[-reach:]
    for end in range(seen + 1, min(reach, len(new)) + 1):
        text = decode(before + new[:end])
        if any(string in text and string not in decode(new[:end]) for string in stop):
            return end - seen
    return None
