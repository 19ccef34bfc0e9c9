"""SGLang's /generate: a text or token ids, as they are."""

from collections.abc import Iterable
from typing import Any

from schemas.rollouts import StopReason
from serve_apps.agents.asked import Asked, Content, DialectName, Encoder, Part, Said
from serve_apps.agents.canonical import Conversation
from serve_apps.agents.dialects import fields, sse
from serve_apps.agents.dialects.chat import LOWEST
from serve_apps.agents.dialects.fields import bad, get, no_effect, only, refused, runs, sampled, works
from serve_apps.agents.dialects.tools import check_grammar

_ONE = "one prompt a request"
FIELDS: fields.Fields = {
    "text": works(f"{_ONE}: a text, and no list"),
    "input_ids": works(f"{_ONE}: token ids, and no list of such"),
    "sampling_params": works("see below"),
    "stream": works("each event has the whole text so far, as SGLang's has"),
    "return_logprob": works("of each generated token"),
    "return_text_in_logprobs": works(),
    "rid": works("the answer has it as its id"),
    "logprob_start_len": only(-1, note="log-probs of the prompt are not recorded: -1"),
    "top_logprobs_num": only(0, note="log-probs of other tokens than the sampled ones are not recorded: 0"),
    "return_hidden_states": only(False, note="hidden states are not recorded: false"),
    "return_routed_experts": only(False, note="routed experts are not recorded: false"),
    "token_ids_logprob": refused("log-probs of other tokens than the sampled ones are not recorded"),
    "image_data": refused("the model reads text"),
    "audio_data": refused("the model reads text"),
    "video_data": refused("the model reads text"),
    "input_embeds": refused("the model reads tokens"),
    "session_params": refused("send the whole prompt: its prefix is cached"),
    "lora_path": refused("the run trains its own weights"),
    "custom_logit_processor": refused("nothing in a request chooses code"),
    "model": no_effect("the run has one model"),
    "session_id": no_effect("the session is in the URL or the key"),
    "log_metrics": no_effect("engines count every request"),
    "priority": no_effect("engines take requests in their order"),
}
SAMPLING: fields.Fields = {
    "max_new_tokens": sampled("max_new_tokens", fields.integer(1)),
    "min_new_tokens": sampled("min_new_tokens", fields.integer(0)),
    "temperature": runs("temperature", fields.number(0)),
    "top_p": runs("top_p", fields.number(0, 1, above=True)),
    "frequency_penalty": runs("frequency_penalty", fields.number(-2, 2)),
    "presence_penalty": runs("presence_penalty", fields.number(-2, 2)),
    "stop": sampled("stop", fields.stops),
    "sampling_seed": sampled("sampling_seed", fields.seed),
    "logit_bias": refused(fields.BIAS),
    "json_schema": sampled("json_schema", fields.text, "where engines have a grammar back-end; so the next three"),
    "regex": sampled("regex", fields.text),
    "ebnf": sampled("ebnf", fields.text),
    "structural_tag": sampled("structural_tag", fields.text),
    "skip_special_tokens": works("false if it is not given"),
    "no_stop_trim": works(),
    **{name: fields.SGLANG[name] for name in ("top_k", "min_p", "repetition_penalty", "stop_token_ids", "ignore_eos")},
    "n": only(1, note="one answer a request: ask again for another one"),
    "spaces_between_special_tokens": no_effect("there are none"),
    "stream_interval": no_effect("tokens are sent as they are in the log"),
    "custom_params": refused("nothing in a request chooses code"),
}


class Generate:
    """See `Dialect`."""

    name = DialectName.GENERATE
    items = ""

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return Conversation(messages)

    def read(self, request: fields.Object, told: Conversation) -> Asked:
        fields.read_fields(FIELDS, request)
        params = get(request, "sampling_params", dict, "", {})
        sampling = fields.read_fields(SAMPLING, params, "sampling_params")
        check_grammar(sampling)
        ids, text = fields.maybe(request, "input_ids", list), fields.maybe(request, "text", str)
        if bool(ids) == bool(text):
            bad("input_ids" if ids else "text", "there has to be either a text or input_ids")
        get(request, "rid", str, "", "")
        return Asked(
            dialect=self.name,
            model="",
            tokens=tuple(fields.token_ids(ids, "input_ids")) if ids else None,
            text=text or None,
            sampling=sampling,
            stream=get(request, "stream", bool, "", False),
            log_probs=0 if get(request, "return_logprob", bool, "", False) else None,
            skip_special=get(params, "skip_special_tokens", bool, "sampling_params", False),
            trim_stop=not get(params, "no_stop_trim", bool, "sampling_params", False),
            body=request,
        )

    def whole(self, asked: Asked, said: Said) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": asked.body.get("rid") or said.id,
            "finish_reason": _finish(said),
            "prompt_tokens": said.prompt_tokens,
            "completion_tokens": len(said.tokens),
            "cached_tokens": said.cached_tokens,
            "weight_version": str(max(said.versions, default=0)),
        }
        if asked.log_probs is not None:
            meta["output_token_logprobs"] = _log_probs(asked, said.tokens, said.log_probs, said.pieces)
            meta["input_token_logprobs"] = []
        return {"text": said.text, "output_ids": list(said.tokens), "meta_info": meta}

    def stream(self, asked: Asked, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return _Stream(asked, id, prompt_tokens)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        return {"error": {"message": f"{field}: {message}" if field else message, "code": status}}


class _Stream:
    """See `Encoder`."""

    def __init__(self, asked: Asked, id: str, prompt_tokens: int) -> None:
        self._asked, self._id, self._prompt_tokens = asked, id, prompt_tokens
        self._text, self._ids, self._log_probs = "", list[int](), list[Any]()

    def begin(self) -> bytes:
        return b""

    def part(self, part: Part) -> bytes:
        if not isinstance(part, Content):  # there are no parsers here
            return b""
        self._text += part.text
        self._ids += part.tokens
        meta: dict[str, Any] = {
            "id": self._asked.body.get("rid") or self._id,
            "finish_reason": None,
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": len(self._ids),
            "cached_tokens": 0,
        }
        if self._asked.log_probs is not None:
            self._log_probs += _log_probs(self._asked, part.tokens, part.log_probs, part.pieces)
            meta["output_token_logprobs"] = self._log_probs
        return sse.data({"text": self._text, "output_ids": self._ids, "meta_info": meta})

    def end(self, said: Said) -> bytes:
        return sse.data(Generate().whole(self._asked, said)) + sse.DONE

    def fail(self, status: int, message: str) -> bytes:
        return sse.data(Generate().refusal(status, message)) + sse.DONE


def _finish(said: Said) -> dict[str, Any]:
    match said.stop:
        case StopReason.LENGTH:
            return {"type": "length", "length": len(said.tokens)}
        case StopReason.ABORT:
            return {"type": "abort"}
        case _:
            return {"type": "stop"} | ({} if said.matched is None else {"matched": said.matched})


def _log_probs(
    asked: Asked, tokens: tuple[int, ...], log_probs: tuple[float, ...], pieces: tuple[bytes, ...]
) -> list[list[Any]]:
    """[log-prob, token id, its text or null] of each."""
    with_text = bool(asked.body.get("return_text_in_logprobs"))
    texts = [piece.decode(errors="replace") for piece in pieces] if with_text else [None] * len(tokens)
    return [
        [max(float(log_prob), LOWEST), token, text]
        for log_prob, token, text in zip(log_probs, tokens, texts, strict=True)
    ]
