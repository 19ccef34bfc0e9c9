"""Reads the steps of a streamed answer of SGLang's /generate, and checks every part that is used.

The server is somebody else's, and so may be a proxy before it: an answer may be cut, repeated, late, or of another
type.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.errors import EngineError, RequestRefused
from schemas.rollouts import StopReason
from schemas.text import valid_text

LONGEST = 64 << 20
"""Bytes of one message, at most."""
SHOWN = 300
"""Characters of an answer in a message."""
DONE = b"[DONE]"

Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Reason(msgspec.Struct):
    type: str
    status_code: int | None = None


class _Meta(msgspec.Struct):
    id: str
    finish_reason: _Reason | None
    weight_version: str
    completion_tokens: Annotated[int, msgspec.Meta(ge=0)]
    output_token_logprobs: list[tuple[float, Id, str | None]] | None = None
    output_token_sampling_mask: list[list[Id]] | None = None
    output_token_sampling_logprobs: list[float] | None = None


class _Step(msgspec.Struct):
    output_ids: list[Id]
    meta_info: _Meta


class Step(NamedTuple):
    """New tokens of a response."""

    tokens: list[int]
    meta: Annotated[dict[str, Any], doc("SGLang's `meta_info`.")]
    weights: Annotated[str, doc("SGLang's name of the weights that made the tokens.")]


class StepReader:
    """Checks the messages of one response, in order.

    `is_incremental`: each message has only the tokens since the last one (SGLang's --incremental-streaming-output).
    """

    def __init__(self, rid: str, *, is_incremental: bool) -> None:
        self._rid, self._is_incremental = rid, is_incremental
        self._tokens: list[int] = []

    def read(self, data: bytes) -> Step:
        """Return the step of a message. Raises RequestRefused with SGLang's reason, EngineError for any other answer
        that cannot be used.
        """
        try:
            raw = msgspec.json.decode(data)
            if isinstance(raw, dict) and "error" in raw:
                raise refusal(raw["error"])
            step = msgspec.convert(raw, _Step)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise EngineError(f"the server's answer cannot be read ({error}): {shown(data)}") from error
        meta, tokens = step.meta_info, self._new(step)
        if meta.id != self._rid:
            raise EngineError(f"the server answered request {self._rid} with {meta.id}")
        self._check_log_probs(meta, tokens)
        self._tokens.extend(tokens)
        return Step(tokens, raw["meta_info"], meta.weight_version)

    def _new(self, step: _Step) -> list[int]:
        """Return the tokens that earlier messages did not have."""
        ids, count, before = step.output_ids, step.meta_info.completion_tokens, len(self._tokens)
        start = count - len(ids)
        if not self._is_incremental and start == 0 and ids[:before] == self._tokens:
            return ids[before:]
        if self._is_incremental and start == before:
            return ids
        raise EngineError(
            f"the server sent tokens {start} to {count} of a response after its first {before}: a message is missing, "
            "or came twice"
        )

    def _check_log_probs(self, meta: _Meta, tokens: list[int]) -> None:
        is_abort = meta.finish_reason is not None and meta.finish_reason.type == StopReason.ABORT
        pairs = (meta.output_token_logprobs or [])[-len(tokens) :] if tokens else []
        if len(pairs) < len(tokens) and is_abort:  # they were not sampled
            return
        if [pair[1] for pair in pairs] != tokens:
            raise EngineError(f"the server sent {len(tokens)} tokens with {len(pairs)} log-probs of other tokens")
        if meta.output_token_sampling_mask is not None and tokens:
            masks, log_probs = meta.output_token_sampling_mask, meta.output_token_sampling_logprobs or []
            if min(len(masks), len(log_probs)) < len(tokens):
                raise EngineError(
                    f"the server sent {len(tokens)} tokens, but {len(masks)} sets of kept ids with {len(log_probs)} "
                    "log-probs"
                )


async def messages_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the messages of a server-sent event stream up to [DONE]. Raises EngineError if it ends before."""
    buffer, looked = bytearray(), 0
    async for piece in pieces:
        buffer += piece
        while (end := buffer.find(b"\n\n", looked)) >= 0:
            message = bytes(buffer[:end])
            del buffer[: end + 2]
            looked = 0
            if not message.startswith(b"data:"):
                raise EngineError(f"the server's answer is not an event stream: {shown(message)}")
            if (data := message[5:].strip()) == DONE:
                return
            yield data
        looked = max(0, len(buffer) - 1)
        if len(buffer) > LONGEST:
            raise EngineError(f"the server sent a message of more than {LONGEST >> 20} MiB")
    raise EngineError(f"the server's answer ended in the middle{f': {shown(buffer)}' if buffer else ''}")


def refusal(error: object) -> EngineError:
    """Return SGLang's error, from the body of an answer or a message of a stream."""
    fields = error if isinstance(error, dict) else {"message": error}
    code, text = fields.get("code", 400), str(fields.get("message") or "no reason")
    is_refused = isinstance(code, int) and 400 <= code < 500 and code not in (401, 403, 404, 408, 425, 429)
    return (RequestRefused if is_refused else EngineError)(valid_text(text))


def shown(data: bytes | bytearray) -> str:
    """Return the start of an answer as text."""
    text = valid_text(bytes(data[:SHOWN]).decode(errors="replace"))
    return repr(text) + ("..." if len(data) > SHOWN else "")
