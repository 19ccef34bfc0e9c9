"""SGLang's /generate: a prompt as text or token ids, without a chat template."""

from collections.abc import Iterable
from typing import Any

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
    DONE,
    AgentRequest,
    Answer,
    Content,
    DialectName,
    Encoder,
    Part,
    event,
)
from serve_apps.rollouts.agents.canonical import Conversation
from serve_apps.rollouts.agents.dialects import fields
from serve_apps.rollouts.agents.dialects.chat import LOWEST
from serve_apps.rollouts.agents.dialects.fields import (
    bad,
    check_grammar,
    get,
    no_effect,
    only,
    refused,
    sampled,
    set_by_run,
    works,
)

FIELDS: fields.Fields = {
    "text": works("one prompt for each request: a string, not a list"),
    "input_ids": works("one prompt for each request: a list of token ids, not a list of lists"),
    "sampling_params": works("see below"),
    "stream": works("each event has the whole text so far, as with SGLang"),
    "return_logprob": works("log-prob of each generated token"),
    "return_text_in_logprobs": works(),
    "rid": works("id of the answer"),
    "logprob_start_len": only(-1, note="must be -1: log-probs of the prompt are not recorded"),
    "top_logprobs_num": only(0, note="must be 0: log-probs are recorded of the sampled tokens only"),
    "return_hidden_states": only(False, note="must be false: hidden states are not recorded"),
    "return_routed_experts": only(False, note="must be false: routed experts are not recorded"),
    "token_ids_logprob": refused("not supported: log-probs are recorded of the sampled tokens only"),
    "image_data": refused("not supported: the model reads text only"),
    "audio_data": refused("not supported: the model reads text only"),
    "video_data": refused("not supported: the model reads text only"),
    "input_embeds": refused("not supported: send token ids as input_ids"),
    "session_params": refused("not supported: send the whole prompt, whose prefix is cached"),
    "lora_path": refused("not supported: the run generates with the weights that it trains"),
    "custom_logit_processor": refused("not supported: a request cannot choose code"),
    "model": no_effect("the run has one model"),
    "session_id": no_effect("the URL or the key names the session"),
    "log_metrics": no_effect("engines count every request"),
    "priority": no_effect("engines take requests in order of arrival"),
}
_GRAMMAR = "needs a grammar back-end of the engines"
SAMPLING: fields.Fields = {
    "max_new_tokens": sampled("max_new_tokens", fields.integer(1)),
    "min_new_tokens": sampled("min_new_tokens", fields.integer(0)),
    "temperature": set_by_run("temperature", fields.number(0)),
    "top_p": set_by_run("top_p", fields.number(0, 1, above=True)),
    "frequency_penalty": set_by_run("frequency_penalty", fields.number(-2, 2)),
    "presence_penalty": set_by_run("presence_penalty", fields.number(-2, 2)),
    "stop": sampled("stop", fields.stops),
    "sampling_seed": sampled("sampling_seed", fields.seed),
    "logit_bias": refused(fields.BIAS),
    "json_schema": sampled("json_schema", fields.text, _GRAMMAR),
    "regex": sampled("regex", fields.text, _GRAMMAR),
    "ebnf": sampled("ebnf", fields.text, _GRAMMAR),
    "structural_tag": sampled("structural_tag", fields.text, _GRAMMAR),
    "skip_special_tokens": works("default: false"),
    "no_stop_trim": works(),
    **{name: fields.SGLANG[name] for name in ("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos")},
    "n": only(1, note="must be 1: send a request for each answer"),
    "spaces_between_special_tokens": no_effect("no spaces are added"),
    "stream_interval": no_effect("tokens are sent once they are in the log"),
    "custom_params": refused("not supported: a request cannot choose code"),
}


_LogProb = list[float | int | str | None]
"""[log-prob, token id, the token's text if it is requested]"""


class Generate:
    name = DialectName.GENERATE
    items = ""

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return Conversation(messages)

    def read(self, body: fields.Object, conversation: Conversation) -> AgentRequest:
        fields.read_fields(FIELDS, body)
        params = get(body, "sampling_params", dict, "", {})
        sampling = fields.read_fields(SAMPLING, params, "sampling_params")
        check_grammar(sampling)
        ids, text = fields.maybe(body, "input_ids", list), fields.maybe(body, "text", str)
        if bool(ids) == bool(text):
            bad("input_ids" if ids else "text", "set exactly one of text and input_ids")
        get(body, "rid", str, "", "")
        return AgentRequest(
            dialect=self.name,
            model="",
            tokens=tuple(fields.token_ids(ids, "input_ids")) if ids else None,
            text=text or None,
            sampling=sampling,
            stream=get(body, "stream", bool, "", False),
            log_probs=0 if get(body, "return_logprob", bool, "", False) else None,
            skip_special=get(params, "skip_special_tokens", bool, "sampling_params", False),
            trim_stop=not get(params, "no_stop_trim", bool, "sampling_params", False),
            body=body,
        )

    def whole(self, request: AgentRequest, answer: Answer) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": request.body.get("rid") or answer.id,
            "finish_reason": _finish(answer),
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": len(answer.tokens),
            "cached_tokens": answer.cached_tokens,
            "weight_version": str(max(answer.versions, default=0)),
        }
        if request.log_probs is not None:
            meta["output_token_logprobs"] = _log_probs(request, answer.tokens, answer.log_probs, answer.pieces)
            meta["input_token_logprobs"] = []
        return {"text": answer.text, "output_ids": list(answer.tokens), "meta_info": meta}

    def stream(self, request: AgentRequest, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return _Stream(request, id, prompt_tokens)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        return {"error": {"message": f"{field}: {message}" if field else message, "code": status}}


class _Stream:
    def __init__(self, request: AgentRequest, id: str, prompt_tokens: int) -> None:
        self._request, self._id, self._prompt_tokens = request, id, prompt_tokens
        self._text, self._ids, self._log_probs = "", list[int](), list[_LogProb]()

    def begin(self) -> bytes:
        return b""

    def part(self, part: Part) -> bytes:
        if not isinstance(part, Content):  # /generate has no parsers, so it has no other parts
            return b""
        self._text += part.text
        self._ids += part.tokens
        meta: dict[str, Any] = {
            "id": self._request.body.get("rid") or self._id,
            "finish_reason": None,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": len(self._ids),
            "cached_tokens": 0,
        }
        if self._request.log_probs is not None:
            self._log_probs += _log_probs(self._request, part.tokens, part.log_probs, part.pieces)
            meta["output_token_logprobs"] = self._log_probs
        return event({"text": self._text, "output_ids": self._ids, "meta_info": meta})

    def end(self, answer: Answer) -> bytes:
        return event(Generate().whole(self._request, answer)) + DONE

    def fail(self, status: int, message: str) -> bytes:
        return event(Generate().refusal(status, message)) + DONE


def _finish(answer: Answer) -> dict[str, Any]:
    match answer.stop:
        case StopReason.LENGTH:
            return {"type": "length", "length": len(answer.tokens)}
        case StopReason.ABORT:
            return {"type": "abort"}
        case _:
            return {"type": "stop"} | ({} if answer.matched is None else {"matched": answer.matched})


def _log_probs(
    request: AgentRequest, tokens: tuple[int, ...], log_probs: tuple[float, ...], pieces: tuple[bytes, ...]
) -> list[_LogProb]:
    with_text = bool(request.body.get("return_text_in_logprobs"))
    texts = [piece.decode(errors="replace") for piece in pieces] if with_text else [None] * len(tokens)
    return [
        [max(float(log_prob), LOWEST), token, text]
        for log_prob, token, text in zip(log_probs, tokens, texts, strict=True)
    ]
