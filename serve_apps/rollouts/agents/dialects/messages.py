"""Anthropic's Messages."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
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
    named_event,
)
from serve_apps.rollouts.agents.canonical import (
    Call,
    Conversation,
    arguments_of,
    assistant,
    calls_of,
    carried,
    carry,
    leading_system,
)
from serve_apps.rollouts.agents.dialects import fields
from serve_apps.rollouts.agents.dialects.chat import text_of
from serve_apps.rollouts.agents.dialects.fields import (
    bad,
    check_choice,
    check_grammar,
    effort_template,
    function,
    get,
    items,
    no_effect,
    only,
    refused,
    sampled,
    schema_sampling,
    set_by_run,
    under,
    works,
)

FIELDS: fields.Fields = fields.SGLANG | {
    "model": works("any name: the run has one model"),
    "messages": works("text, thinking, tool_use, tool_result; the last message is not the assistant's"),
    "max_tokens": sampled("max_new_tokens", fields.integer(1)),
    "system": works(),
    "stream": works(),
    "temperature": set_by_run("temperature", fields.number(0, 2)),
    "top_p": set_by_run("top_p", fields.number(0, 1, above=True)),
    "stop_sequences": sampled("stop", fields.stops),
    "seed": sampled("sampling_seed", fields.seed),
    "tools": works("tools of the client; needs --sglang-tool-call-parser"),
    "tool_choice": works("auto, none; any or a tool needs a grammar back-end; disable_parallel_tool_use"),
    "thinking": works("passed to the chat template as enable_thinking and thinking; budget_tokens has no effect"),
    "output_config": works("effort: passed to the chat template. format: json_schema, needs a grammar back-end"),
    "output_format": works("same as the format of output_config"),
    "context_management": only(
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        note="must have no edits: the gateway removes nothing from a conversation",
    ),
    "container": refused("not supported: the gateway runs no code"),
    "mcp_servers": refused("not supported: the gateway calls no tools. Define a tool of the client in tools"),
    "metadata": no_effect("stored with the raw request"),
    "service_tier": no_effect("the run has one tier"),
    "cache_control": no_effect("prefixes are cached by their tokens; also in blocks and tools"),
    "inference_geo": no_effect("the run has one location"),
    "speed": no_effect("the run has one speed"),
    "diagnostics": no_effect("diagnostics are in the run's log"),
    "user_profile_id": no_effect("stored with the raw request"),
    "workspace_id": no_effect("stored with the raw request"),
}
_BILLING = "x-anthropic-billing-header:"
"""Prefix of a system block that Claude Code adds for its own server. It changes with each request and is not prompt."""

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}

EMPTY: dict[str, Any] = {"type": "text", "text": "", "citations": []}


class Messages:
    name = DialectName.MESSAGES
    items = "messages"

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return _Messages(messages)

    def read(self, body: fields.Object, conversation: Conversation) -> AgentRequest:
        request = self.read_count(body, conversation)
        get(body, "max_tokens", int, "")
        return request

    def read_count(self, body: fields.Object, conversation: Conversation) -> AgentRequest:
        """Read a request to count tokens, which may lack `max_tokens`. Raises BadField."""
        sampling = fields.read_fields(FIELDS, body)
        config = get(body, "output_config", dict, "", {})
        sampling |= _shape(get(config, "format", dict, "output_config", {}), "output_config.format")
        sampling |= _shape(get(body, "output_format", dict, "", {}), "output_format")
        check_grammar(sampling)
        tools = _tools(get(body, "tools", list, "", []))
        choice = get(body, "tool_choice", dict, "", {"type": "auto"})
        effort = get(config, "effort", str, "output_config", "")
        template = (effort_template(effort) if effort else {}) | _thinking(body)
        return AgentRequest(
            dialect=self.name,
            model=get(body, "model", str, ""),
            messages=_conversation(body, conversation),
            tools=tools,
            tool_choice=_choice(choice, tools),
            parallel=not get(choice, "disable_parallel_tool_use", bool, "tool_choice", False),
            sampling=sampling,
            template=template | fields.template_arguments(body),
            stream=get(body, "stream", bool, "", False),
            skip_special=fields.maybe(body, "skip_special_tokens", bool),
            body=body,
        )

    def counted(self, prompt_tokens: int) -> dict[str, Any]:
        """Return the answer to a request to count tokens."""
        return {"input_tokens": prompt_tokens}

    def whole(self, request: AgentRequest, answer: Answer) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        if reasoning := answer.message.get("reasoning_content"):
            hidden = _hides(request)
            shown, signature = "" if hidden else reasoning, _signature(reasoning, hidden)
            blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
        if text := answer.message["content"]:
            blocks.append(EMPTY | {"text": text})
        blocks += [_call(id, name, arguments_of(arguments)) for id, name, arguments in calls_of(answer.message)]
        message = _message(request, answer.id, answer.prompt_tokens)
        return message | {
            "content": blocks or [EMPTY],
            **_end(request, answer),
            "usage": _usage(answer.prompt_tokens, answer),
        }

    def stream(self, request: AgentRequest, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return _Stream(request, id, prompt_tokens)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        text = f"{field}: {message}" if field else message
        return {"type": "error", "error": {"type": kind, "message": text}, "request_id": None}


class _Stream:
    """Encodes one streamed answer. One block is open at a time."""

    def __init__(self, request: AgentRequest, id: str, prompt_tokens: int) -> None:
        self._request, self._id, self._prompt_tokens = request, id, prompt_tokens
        self._index, self._open = -1, ""
        self._thought = ""

    def begin(self) -> bytes:
        message = _message(self._request, self._id, self._prompt_tokens)
        return named_event({"type": "message_start", "message": message}) + named_event({"type": "ping"})

    def part(self, part: Part) -> bytes:
        match part:
            case Content(text):
                begun = self._begin(EMPTY) if text else b""
                return begun + (self._delta({"type": "text_delta", "text": text}) if text else b"")
            case Reasoning(text):
                begun = self._begin({"type": "thinking", "thinking": "", "signature": ""})
                self._thought += text
                hidden = _hides(self._request)
                return begun + (b"" if hidden else self._delta({"type": "thinking_delta", "thinking": text}))
            case CallBegun(_, id, name):
                return self._close() + self._begin(_call(id, name, {}))
            case CallArguments(_, text):
                return self._delta({"type": "input_json_delta", "partial_json": text})

    def end(self, answer: Answer) -> bytes:
        empty = self._begin(EMPTY) if self._index < 0 else b""
        usage = _usage(answer.prompt_tokens, answer)
        last = {"type": "message_delta", "delta": _end(self._request, answer), "usage": usage}
        return empty + self._close() + named_event(last) + named_event({"type": "message_stop"})

    def fail(self, status: int, message: str) -> bytes:
        return named_event(Messages().refusal(status, message))

    def _begin(self, block: dict[str, Any]) -> bytes:
        if self._open == block["type"]:
            return b""
        closed = self._close()
        self._index, self._open = self._index + 1, block["type"]
        return closed + named_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thinking":
            signature = _signature(self._thought, _hides(self._request))
            signed, self._thought = self._delta({"type": "signature_delta", "signature": signature}), ""
        self._open = ""
        return signed + named_event({"type": "content_block_stop", "index": self._index})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return named_event({"type": "content_block_delta", "index": self._index, "delta": delta})


def _message(request: AgentRequest, id: str, prompt_tokens: int) -> dict[str, Any]:
    """Return a message without content."""
    return {
        "id": f"msg_{id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": _usage(prompt_tokens),
    }


def _call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments, "caller": {"type": "direct"}}


def _end(request: AgentRequest, answer: Answer) -> dict[str, Any]:
    if answer.stop is not StopReason.STOP:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if calls_of(answer.message):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if answer.matched in (request.body.get("stop_sequences") or ()):
        return {"stop_reason": "stop_sequence", "stop_sequence": answer.matched}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(prompt_tokens: int, answer: Answer | None = None) -> dict[str, Any]:
    """Return Anthropic's usage, which does not count cached tokens as input tokens."""
    cached = answer.cached_tokens if answer else 0
    return {
        "input_tokens": max(0, prompt_tokens - cached),
        "output_tokens": len(answer.tokens) if answer else 0,
        "output_tokens_details": {"thinking_tokens": answer.reasoning_tokens if answer else 0},
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "cache_creation": None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _hides(request: AgentRequest) -> bool:
    """Return whether the client asks to hide thinking. Then the signature carries the thinking to the next request."""
    return (request.body.get("thinking") or {}).get("display") == "omitted"


def _signature(thinking: str, hidden: bool) -> str:
    return carry(thinking) if hidden else hashlib.sha256(thinking.encode()).hexdigest()


class _Messages(Conversation):
    def add(self, item: dict[str, Any], path: str) -> None:
        role = get(item, "role", str, path)
        content, where = item.get("content"), under(path, "content")
        if role == "system":
            self.messages.append({"role": "system", "content": text_of(content, where)})
        elif role == "assistant":
            self.messages.append(_assistant_message(_blocks(content, where)))
        elif role == "user":
            self.messages += _user_messages(_blocks(content, where))
        else:
            bad(under(path, "role"), "must be user or assistant")


def _conversation(body: fields.Object, conversation: Conversation) -> tuple[dict[str, Any], ...]:
    system = _system(body.get("system"))
    messages = get(body, "messages", list, "")
    conversation.take(items(messages, "messages"))
    if not conversation.messages:
        bad("messages", "must have at least one message")
    if conversation.messages[-1]["role"] == "assistant":
        path = f"messages.{len(messages) - 1}.role"
        bad(path, "the last message cannot be the assistant's: an answer always begins a new message")
    head = [{"role": "system", "content": system}] if system else []
    return leading_system([*head, *conversation.messages])


def _system(system: object) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = (text_of([block], f"system.{at}") for at, block in enumerate(fields.take(system, list, "system")))
    return "\n".join(text for text in texts if not text.startswith(_BILLING))


def _blocks(content: object, path: str) -> list[tuple[dict[str, Any], str]]:
    if isinstance(content, str):
        return [({"type": "text", "text": content}, path)]
    if content is None:
        bad(path, "required field is missing")
    return items(fields.take(content, list, path), path)


def _assistant_message(blocks: Sequence[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    text, thinking, calls = "", "", list[Call]()
    for block, path in blocks:
        match block.get("type"):
            case "text":
                text += get(block, "text", str, path)
            case "thinking":
                thinking += get(block, "thinking", str, path, "") or carried(get(block, "signature", str, path, ""))
            case "tool_use":
                arguments = fields.to_json(get(block, "input", dict, path))
                calls.append(Call(get(block, "id", str, path), get(block, "name", str, path), arguments))
            case kind:
                bad(under(path, "type"), f"a block of an assistant message cannot be {kind!r}")
    return assistant(text, thinking, calls)


def _user_messages(blocks: Sequence[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Return the user's text and each tool result as messages, in order. Adjacent texts become one message."""
    messages: list[dict[str, Any]] = []
    for block, path in blocks:
        match block.get("type"):
            case "text":
                text = get(block, "text", str, path)
                if messages and messages[-1]["role"] == "user":
                    text = f"{messages.pop()['content']}\n{text}"
                messages.append({"role": "user", "content": text})
            case "tool_result":
                content = text_of(get(block, "content", object, path, ""), under(path, "content"))
                call_id = get(block, "tool_use_id", str, path)
                messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
            case kind:
                bad(under(path, "type"), f"must be text or tool_result, not {kind}")
    return messages or [{"role": "user", "content": ""}]


def _tools(tools: Sequence[object]) -> tuple[dict[str, Any], ...]:
    functions = []
    for tool, path in items(tools, "tools"):
        if tool.get("type") not in (None, "custom"):
            bad(under(path, "type"), "must be custom: the gateway runs no tools")
        functions.append(function(tool, path, "input_schema"))
    return tuple(functions)


def _choice(choice: fields.Object, tools: Sequence[fields.Object]) -> str:
    match choice.get("type"):
        case "auto" | "none" as word:
            return str(word)
        case "any":
            return check_choice("required", tools, "tool_choice.type")
        case "tool":
            name = get(choice, "name", str, "tool_choice")
            return check_choice(name, tools, "tool_choice.name")
    raise BadField("tool_choice.type", "must be auto, any, tool or none")


def _thinking(body: fields.Object) -> dict[str, Any]:
    thinking = get(body, "thinking", dict, "", {})
    match thinking.get("type"):
        case None:
            return {}
        case "enabled" | "adaptive":
            return {"enable_thinking": True, "thinking": True}
        case "disabled":
            return {"enable_thinking": False, "thinking": False}
    raise BadField("thinking.type", "must be enabled, adaptive or disabled")


def _shape(form: fields.Object, path: str) -> dict[str, str]:
    if not form:
        return {}
    if form.get("type") != "json_schema":
        bad(under(path, "type"), "must be json_schema")
    return schema_sampling(form.get("schema"), under(path, "schema"))
