"""OpenAI's chat completions."""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.content import BadContent, joined_text
from schemas.rollouts import StopReason
from serve_apps.agents.asked import (
    Asked,
    BadField,
    CallArguments,
    CallBegun,
    Content,
    DialectName,
    Encoder,
    Part,
    Reasoning,
    Said,
)
from serve_apps.agents.canonical import Call, Conversation, assistant, calls_of, leading_system
from serve_apps.agents.dialects import fields, sse
from serve_apps.agents.dialects.fields import (
    bad,
    get,
    items,
    no_effect,
    only,
    refused,
    runs,
    sampled,
    under,
    works,
)
from serve_apps.agents.dialects.tools import check_grammar, effort_template, function, openai_choice, schema_sampling

_LENGTH = fields.integer(1)
OPENAI: fields.Fields = fields.SGLANG | {
    "model": works("any name: the run has one model"),
    "stream": works(),
    "temperature": runs("temperature", fields.number(0, 2)),
    "top_p": runs("top_p", fields.number(0, 1, above=True)),
    "stop": sampled("stop", fields.stops),
    "seed": sampled("sampling_seed", fields.seed),
    "frequency_penalty": runs("frequency_penalty", fields.number(-2, 2)),
    "presence_penalty": runs("presence_penalty", fields.number(-2, 2)),
    "logit_bias": refused(fields.BIAS),
    "top_logprobs": only(0, note="log-probs of other tokens than the sampled ones are not recorded: 0"),
    "tools": works("functions; needs --sglang-tool-call-parser"),
    "tool_choice": works("auto, none; required and a function where engines have a grammar back-end"),
    "parallel_tool_calls": works("false: calls after the first are left out"),
    "user": no_effect("kept in the raw request"),
    "metadata": no_effect("kept in the raw request"),
    "service_tier": no_effect("there is one"),
    "safety_identifier": no_effect("kept in the raw request"),
    "prompt_cache_key": no_effect("prefixes are cached by their tokens"),
    "prompt_cache_retention": no_effect("prefixes are cached by their tokens"),
}
"""Of both APIs of OpenAI's."""
FIELDS: fields.Fields = OPENAI | {
    "messages": works("text parts; developer messages are system messages"),
    "stream_options": works("include_usage"),
    "max_tokens": sampled("max_new_tokens", _LENGTH),
    "max_completion_tokens": sampled("max_new_tokens", _LENGTH, "the smaller one counts where both are given"),
    "logprobs": works("of each token, as it was sampled: of logits / temperature"),
    "response_format": works("json_object, json_schema; where engines have a grammar back-end"),
    "reasoning_effort": works("given to the chat template; none also as enable_thinking and thinking: false"),
    "reasoning": works("its effort, as reasoning_effort"),
    "verbosity": works("given to the chat template"),
    "n": only(1, note="one answer a request: ask again for another one"),
    "store": only(False, note="answers are kept in the run's log, and are not read from here: false"),
    "modalities": only(["text"], note='the model writes text: ["text"]'),
    "audio": refused("the model writes text"),
    "web_search_options": refused("there is no search here: give a tool of your own"),
    "functions": refused("tools has taken its place"),
    "function_call": refused("tool_choice has taken its place"),
    "separate_reasoning": only(True, note="reasoning is separate wherever there is a parser: true"),
    "stream_reasoning": only(True, note="reasoning is streamed as it comes: true"),
    "continue_final_message": only(False, note="an answer that is begun is not continued: false"),
    "prediction": no_effect("answers are the same without"),
}

_STOPS = {StopReason.STOP: "stop", StopReason.LENGTH: "length", StopReason.ABORT: "length"}
LOWEST = -9999.0
"""What OpenAI's API says for a token without any probability."""


class Chat:
    """See `Dialect`."""

    name = DialectName.CHAT
    items = "messages"

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return _Messages(messages)

    def read(self, request: fields.Object, told: Conversation) -> Asked:
        sampling = fields.read_fields(FIELDS, request)
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(limit := request.get(name), int):
                sampling["max_new_tokens"] = min(limit, sampling["max_new_tokens"])
        sampling |= _shape(request)
        check_grammar(sampling)
        tools = read_tools(get(request, "tools", list, "", []))
        wants_log_probs = get(request, "logprobs", bool, "", False)
        get(request, "stream_options", dict, "", {})
        return Asked(
            dialect=self.name,
            model=get(request, "model", str, ""),
            messages=_conversation(get(request, "messages", list, ""), told),
            tools=tools,
            tool_choice=openai_choice(request.get("tool_choice"), tools),
            parallel=get(request, "parallel_tool_calls", bool, "", True),
            sampling=sampling,
            template=_template(request),
            stream=get(request, "stream", bool, "", False),
            log_probs=0 if wants_log_probs else None,
            skip_special=fields.maybe(request, "skip_special_tokens", bool),
            body=request,
        )

    def whole(self, asked: Asked, said: Said) -> dict[str, Any]:
        message = said.message | {"content": _content(said.message), "refusal": None, "annotations": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(said)}
        if asked.log_probs is not None:
            choice["logprobs"] = {"content": log_prob_entries(said.pieces, said.log_probs), "refusal": None}
        return {
            "id": f"chatcmpl-{said.id}",
            "object": "chat.completion",
            "created": said.created,
            "model": asked.model,
            "choices": [choice],
            "usage": usage(said),
            "system_fingerprint": fingerprint(said),
        }

    def stream(self, asked: Asked, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return _Stream(asked, id, created)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        return openai_error(status, message, field)


class _Stream:
    def __init__(self, asked: Asked, id: str, created: int) -> None:
        self._asked = asked
        self._usage = bool((asked.body.get("stream_options") or {}).get("include_usage"))
        self._head = {
            "id": f"chatcmpl-{id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": asked.model,
        }

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def part(self, part: Part) -> bytes:
        match part:
            case Content(text, _, log_probs, pieces):
                entries = log_prob_entries(pieces, log_probs) if self._asked.log_probs is not None else []
                shown = {"content": entries, "refusal": None} if entries else None
                return self._chunk({"content": text} if text else {}, shown) if text or shown else b""
            case Reasoning(text):
                return self._chunk({"reasoning_content": text})
            case CallBegun(index, id, name):
                begun = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                return self._chunk({"tool_calls": [begun]})
            case CallArguments(index, text):
                return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def end(self, said: Said) -> bytes:
        self._head["system_fingerprint"] = fingerprint(said)
        last = self._chunk({}, None, finish_reason(said))
        counted = sse.data({**self._head, "choices": [], "usage": usage(said)}) if self._usage else b""
        return last + counted + sse.DONE

    def fail(self, status: int, message: str) -> bytes:
        return sse.data(openai_error(status, message)) + sse.DONE

    def _chunk(self, delta: dict[str, Any], log_probs: Any = None, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": finish}
        return sse.data({**self._head, "choices": [choice]} | ({"usage": None} if self._usage else {}))


class _Messages(Conversation):
    def add(self, item: dict[str, Any], path: str) -> None:
        self.messages.append(_message(item, path))


def _conversation(given: Sequence[Any], told: Conversation) -> tuple[dict[str, Any], ...]:
    told.take(items(given, "messages"))
    if not told.messages:
        bad("messages", "there has to be a message")
    return leading_system(told.messages)


def _message(message: fields.Object, path: str) -> dict[str, Any]:
    role = get(message, "role", str, path)
    if role == "assistant":
        return _said(message, path)
    content = {"content": text_of(message.get("content"), under(path, "content"))}
    name = {"name": get(message, "name", str, path)} if message.get("name") is not None else {}
    if role in ("system", "developer"):
        return {"role": "system"} | content | name
    if role == "user":
        return {"role": "user"} | content | name
    if role == "tool":
        return {"role": "tool", "tool_call_id": get(message, "tool_call_id", str, path)} | content | name
    raise BadField(under(path, "role"), "this has to be system, developer, user, assistant or tool")


def _said(message: fields.Object, path: str) -> dict[str, Any]:
    for name in ("function_call", "audio"):
        if message.get(name):
            bad(under(path, name), "this cannot be given to the model")
    content = message.get("content")
    text = "" if content is None else text_of(content, under(path, "content"), between="")
    reasoning = get(message, "reasoning_content", str, path, "") or get(message, "reasoning", str, path, "")
    where = under(path, "tool_calls")
    calls = [_call(call, at) for call, at in items(get(message, "tool_calls", list, path, []), where)]
    return assistant(text or get(message, "refusal", str, path, ""), reasoning, calls)


def _call(call: fields.Object, path: str) -> Call:
    if call.get("type", "function") != "function":
        bad(under(path, "type"), "only calls of functions can be given to the model")
    where = under(path, "function")
    called = get(call, "function", dict, path)
    return Call(get(call, "id", str, path), get(called, "name", str, where), get(called, "arguments", str, where))


def text_of(content: Any, path: str, *, between: str = "\n") -> str:
    """A content's text: its own, or that of its parts. Raises BadField for a part that is no text."""
    try:
        return joined_text(content, between)
    except BadContent as error:
        for name in error.path:
            path = under(path, name)
        raise BadField(path, error.message) from None


def read_tools(given: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """Tools of chat's."""
    found = []
    for tool, path in items(given, "tools"):
        if tool.get("type") != "function":
            bad(under(path, "type"), "a tool has to be a function here")
        found.append(function(get(tool, "function", dict, path), under(path, "function")))
    return tuple(found)


def _shape(request: fields.Object) -> dict[str, str]:
    shape = get(request, "response_format", dict, "", {"type": "text"})
    match shape.get("type"):
        case "text":
            return {}
        case "json_object":
            return schema_sampling({"type": "object"}, "")
        case "json_schema":
            holder = get(shape, "json_schema", dict, "response_format")
            return schema_sampling(holder.get("schema"), "response_format.json_schema.schema")
    raise BadField("response_format.type", "this has to be text, json_object or json_schema")


def _template(request: fields.Object) -> dict[str, Any]:
    reasoning = get(request, "reasoning", dict, "", {})
    effort = get(request, "reasoning_effort", str, "", "") or get(reasoning, "effort", str, "reasoning", "")
    verbosity = get(request, "verbosity", str, "", "")
    more = effort_template(effort) if effort else {}
    more |= {"verbosity": verbosity} if verbosity else {}
    return more | fields.template_arguments(request)


def _content(message: fields.Object) -> str | None:
    """OpenAI has null for an answer that is calls alone."""
    return message["content"] or (None if message.get("tool_calls") else "")


def finish_reason(said: Said) -> str:
    """An answer that was aborted was cut, as by a limit."""
    return "tool_calls" if said.stop is StopReason.STOP and calls_of(said.message) else _STOPS[said.stop]


def usage(said: Said) -> dict[str, Any]:
    return {
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": len(said.tokens),
        "total_tokens": said.prompt_tokens + len(said.tokens),
        "prompt_tokens_details": {"cached_tokens": said.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": said.reasoning_tokens},
    }


def fingerprint(said: Said) -> str | None:
    """The newest weights that made it."""
    return f"weights-{max(said.versions)}" if said.versions else None


def log_prob_entries(pieces: Sequence[bytes], log_probs: Sequence[float]) -> list[dict[str, Any]]:
    """A part of a character is shown as U+FFFD, and its bytes beside."""
    return [
        {
            "token": piece.decode(errors="replace"),
            "bytes": list(piece),
            "logprob": max(float(log_prob), LOWEST),
            "top_logprobs": [],
        }
        for piece, log_prob in zip(pieces, log_probs, strict=True)
    ]


def openai_error(status: int, message: str, field: str = "") -> dict[str, Any]:
    """The body of an error of OpenAI's."""
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return {"error": {"message": message, "type": kind, "param": field or None, "code": None}}
