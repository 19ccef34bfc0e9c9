"""OpenAI's chat completions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.content import BadContent, joined_text
from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
    DONE,
    AgentRequest,
    Answer,
    BadField,
    CallArguments,
    CallBegun,
    Content,
    DialectName,
    Encoder,
    Part,
    Reasoning,
    event,
)
from serve_apps.rollouts.agents.canonical import Call, Conversation, assistant, calls_of, leading_system
from serve_apps.rollouts.agents.dialects import fields
from serve_apps.rollouts.agents.dialects.fields import (
    bad,
    check_grammar,
    effort_template,
    function,
    get,
    items,
    no_effect,
    only,
    openai_choice,
    refused,
    sampled,
    schema_sampling,
    set_by_run,
    under,
    works,
)

_LENGTH = fields.integer(1)
OPENAI: fields.Fields = fields.SGLANG | {
    "model": works("any name: the run has one model"),
    "stream": works(),
    "temperature": set_by_run("temperature", fields.number(0, 2)),
    "top_p": set_by_run("top_p", fields.number(0, 1, above=True)),
    "stop": sampled("stop", fields.stops),
    "seed": sampled("sampling_seed", fields.seed),
    "frequency_penalty": set_by_run("frequency_penalty", fields.number(-2, 2)),
    "presence_penalty": set_by_run("presence_penalty", fields.number(-2, 2)),
    "logit_bias": refused(fields.BIAS),
    "top_logprobs": only(0, note="must be 0: log-probs are recorded of the sampled tokens only"),
    "tools": works("functions; needs --sglang-tool-call-parser"),
    "tool_choice": works("auto, none; required or a function needs a grammar back-end of the engines"),
    "parallel_tool_calls": works("false: drop tool calls after the first"),
    "user": no_effect("stored with the raw request"),
    "metadata": no_effect("stored with the raw request"),
    "service_tier": no_effect("the run has one tier"),
    "safety_identifier": no_effect("stored with the raw request"),
    "prompt_cache_key": no_effect("prefixes are cached by their tokens"),
    "prompt_cache_retention": no_effect("prefixes are cached by their tokens"),
}
"""Fields that OpenAI's two APIs share."""
FIELDS: fields.Fields = OPENAI | {
    "messages": works("text parts; developer messages are system messages"),
    "stream_options": works("include_usage"),
    "max_tokens": sampled("max_new_tokens", _LENGTH),
    "max_completion_tokens": sampled("max_new_tokens", _LENGTH, "with max_tokens, the smaller limit counts"),
    "logprobs": works("log-prob of each sampled token, computed from logits / temperature"),
    "response_format": works("json_object, json_schema; needs a grammar back-end of the engines"),
    "reasoning_effort": works("passed to the chat template; none also sets enable_thinking and thinking to false"),
    "reasoning": works("its effort, as reasoning_effort"),
    "verbosity": works("passed to the chat template"),
    "n": only(1, note="must be 1: send a request for each answer"),
    "store": only(False, note="must be false: answers are in the run's log and cannot be fetched through this API"),
    "modalities": only(["text"], note='must be ["text"]: the model writes text only'),
    "audio": refused("not supported: the model writes text only"),
    "web_search_options": refused("not supported: define a search tool of your own in tools"),
    "functions": refused("deprecated: use tools"),
    "function_call": refused("deprecated: use tool_choice"),
    "separate_reasoning": only(True, note="must be true: with a reasoning parser, reasoning is always separate"),
    "stream_reasoning": only(True, note="must be true: reasoning is streamed while it is generated"),
    "continue_final_message": only(False, note="must be false: an answer always begins a new message"),
    "prediction": no_effect("it changes no answer"),
}

_STOPS = {StopReason.STOP: "stop", StopReason.LENGTH: "length", StopReason.ABORT: "length"}
LOWEST = -9999.0
"""Log-prob that OpenAI's API reports for a token of probability zero."""


class Chat:
    name = DialectName.CHAT
    items = "messages"

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return _Messages(messages)

    def read(self, body: fields.Object, conversation: Conversation) -> AgentRequest:
        sampling = fields.read_fields(FIELDS, body)
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(limit := body.get(name), int):
                sampling["max_new_tokens"] = min(limit, sampling["max_new_tokens"])
        sampling |= _shape(body)
        check_grammar(sampling)
        tools = read_tools(get(body, "tools", list, "", []))
        has_log_probs = get(body, "logprobs", bool, "", False)
        get(body, "stream_options", dict, "", {})
        return AgentRequest(
            dialect=self.name,
            model=get(body, "model", str, ""),
            messages=_conversation(get(body, "messages", list, ""), conversation),
            tools=tools,
            tool_choice=openai_choice(body.get("tool_choice"), tools),
            parallel=get(body, "parallel_tool_calls", bool, "", True),
            sampling=sampling,
            template=_template(body),
            stream=get(body, "stream", bool, "", False),
            log_probs=0 if has_log_probs else None,
            skip_special=fields.maybe(body, "skip_special_tokens", bool),
            body=body,
        )

    def whole(self, request: AgentRequest, answer: Answer) -> dict[str, Any]:
        message = answer.message | {"content": _content(answer.message), "refusal": None, "annotations": []}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(answer)}
        if request.log_probs is not None:
            choice["logprobs"] = {"content": log_prob_entries(answer.pieces, answer.log_probs), "refusal": None}
        return {
            "id": f"chatcmpl-{answer.id}",
            "object": "chat.completion",
            "created": answer.created,
            "model": request.model,
            "choices": [choice],
            "usage": usage(answer),
            "system_fingerprint": fingerprint(answer),
        }

    def stream(self, request: AgentRequest, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return _Stream(request, id, created)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        return openai_error(status, message, field)


class _Stream:
    def __init__(self, request: AgentRequest, id: str, created: int) -> None:
        self._request = request
        self._usage = bool((request.body.get("stream_options") or {}).get("include_usage"))
        self._head = {
            "id": f"chatcmpl-{id}",
            "object": "chat.completion.chunk",
            "created": created,
            "model": request.model,
        }

    def begin(self) -> bytes:
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def part(self, part: Part) -> bytes:
        match part:
            case Content(text, _, log_probs, pieces):
                entries = log_prob_entries(pieces, log_probs) if self._request.log_probs is not None else []
                shown = {"content": entries, "refusal": None} if entries else None
                return self._chunk({"content": text} if text else {}, shown) if text or shown else b""
            case Reasoning(text):
                return self._chunk({"reasoning_content": text})
            case CallBegun(index, id, name):
                begun = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                return self._chunk({"tool_calls": [begun]})
            case CallArguments(index, text):
                return self._chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def end(self, answer: Answer) -> bytes:
        self._head["system_fingerprint"] = fingerprint(answer)
        last = self._chunk({}, None, finish_reason(answer))
        counted = event({**self._head, "choices": [], "usage": usage(answer)}) if self._usage else b""
        return last + counted + DONE

    def fail(self, status: int, message: str) -> bytes:
        return event(openai_error(status, message)) + DONE

    def _chunk(
        self, delta: dict[str, Any], log_probs: Mapping[str, object] | None = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": log_probs, "finish_reason": finish}
        return event({**self._head, "choices": [choice]} | ({"usage": None} if self._usage else {}))


class _Messages(Conversation):
    def add(self, item: dict[str, Any], path: str) -> None:
        self.messages.append(_message(item, path))


def _conversation(messages: Sequence[object], conversation: Conversation) -> tuple[dict[str, Any], ...]:
    conversation.take(items(messages, "messages"))
    if not conversation.messages:
        bad("messages", "must have at least one message")
    return leading_system(conversation.messages)


def _message(message: fields.Object, path: str) -> dict[str, Any]:
    role = get(message, "role", str, path)
    if role == "assistant":
        return _assistant_message(message, path)
    content = {"content": text_of(message.get("content"), under(path, "content"))}
    name = {"name": get(message, "name", str, path)} if message.get("name") is not None else {}
    if role in ("system", "developer"):
        return {"role": "system"} | content | name
    if role == "user":
        return {"role": "user"} | content | name
    if role == "tool":
        return {"role": "tool", "tool_call_id": get(message, "tool_call_id", str, path)} | content | name
    raise BadField(under(path, "role"), "must be system, developer, user, assistant or tool")


def _assistant_message(message: fields.Object, path: str) -> dict[str, Any]:
    for name in ("function_call", "audio"):
        if message.get(name):
            bad(under(path, name), "not supported: the model cannot read it")
    content = message.get("content")
    text = "" if content is None else text_of(content, under(path, "content"), between="")
    reasoning = get(message, "reasoning_content", str, path, "") or get(message, "reasoning", str, path, "")
    where = under(path, "tool_calls")
    calls = [_call(call, at) for call, at in items(get(message, "tool_calls", list, path, []), where)]
    return assistant(text or get(message, "refusal", str, path, ""), reasoning, calls)


def _call(call: fields.Object, path: str) -> Call:
    if call.get("type", "function") != "function":
        bad(under(path, "type"), "must be function: the model can read function calls only")
    where = under(path, "function")
    called = get(call, "function", dict, path)
    return Call(get(call, "id", str, path), get(called, "name", str, where), get(called, "arguments", str, where))


def text_of(content: object, path: str, *, between: str = "\n") -> str:
    """Return the text of a content, joined if it has parts. Raises BadField for a part that is not text."""
    try:
        return joined_text(content, between)
    except BadContent as error:
        for name in error.path:
            path = under(path, name)
        raise BadField(path, error.message) from None


def read_tools(tools: Sequence[object]) -> tuple[dict[str, Any], ...]:
    """Read the tools of a chat request. Raises BadField."""
    functions = []
    for tool, path in items(tools, "tools"):
        if tool.get("type") != "function":
            bad(under(path, "type"), "must be function")
        functions.append(function(get(tool, "function", dict, path), under(path, "function")))
    return tuple(functions)


def _shape(body: fields.Object) -> dict[str, str]:
    shape = get(body, "response_format", dict, "", {"type": "text"})
    match shape.get("type"):
        case "text":
            return {}
        case "json_object":
            return schema_sampling({"type": "object"}, "")
        case "json_schema":
            holder = get(shape, "json_schema", dict, "response_format")
            return schema_sampling(holder.get("schema"), "response_format.json_schema.schema")
    raise BadField("response_format.type", "must be text, json_object or json_schema")


def _template(body: fields.Object) -> dict[str, Any]:
    reasoning = get(body, "reasoning", dict, "", {})
    effort = get(body, "reasoning_effort", str, "", "") or get(reasoning, "effort", str, "reasoning", "")
    verbosity = get(body, "verbosity", str, "", "")
    more = effort_template(effort) if effort else {}
    more |= {"verbosity": verbosity} if verbosity else {}
    return more | fields.template_arguments(body)


def _content(message: fields.Object) -> str | None:
    """Return null for an answer that has tool calls only, as OpenAI's API does."""
    return message["content"] or (None if message.get("tool_calls") else "")


def finish_reason(answer: Answer) -> str:
    """Return OpenAI's finish reason. An aborted answer counts as cut off at its length limit."""
    return "tool_calls" if answer.stop is StopReason.STOP and calls_of(answer.message) else _STOPS[answer.stop]


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": len(answer.tokens),
        "total_tokens": answer.prompt_tokens + len(answer.tokens),
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
    }


def fingerprint(answer: Answer) -> str | None:
    """Return the name of the newest weights that generated the answer."""
    return f"weights-{max(answer.versions)}" if answer.versions else None


def log_prob_entries(pieces: Sequence[bytes], log_probs: Sequence[float]) -> list[dict[str, Any]]:
    """Return an entry for each token. A token that is part of a character has the text U+FFFD and its own bytes."""
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
    """Return the body of an error in the form of OpenAI's APIs."""
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return {"error": {"message": message, "type": kind, "param": field or None, "code": None}}
