"""Anthropic's Messages."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

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
from serve_apps.agents.canonical import (
    Call,
    Conversation,
    arguments_of,
    assistant,
    calls_of,
    carried,
    carry,
    leading_system,
)
from serve_apps.agents.dialects import fields, sse
from serve_apps.agents.dialects.chat import text_of
from serve_apps.agents.dialects.fields import bad, get, items, no_effect, only, refused, runs, sampled, under, works
from serve_apps.agents.dialects.tools import check_choice, check_grammar, effort_template, function, schema_sampling

FIELDS: fields.Fields = fields.SGLANG | {
    "model": works("any name: the run has one model"),
    "messages": works("text, thinking, tool_use, tool_result; the last one is not the assistant's"),
    "max_tokens": sampled("max_new_tokens", fields.integer(1)),
    "system": works(),
    "stream": works(),
    "temperature": runs("temperature", fields.number(0, 2)),
    "top_p": runs("top_p", fields.number(0, 1, above=True)),
    "stop_sequences": sampled("stop", fields.stops),
    "seed": sampled("sampling_seed", fields.seed),
    "tools": works("tools of the client; needs --sglang-tool-call-parser"),
    "tool_choice": works("auto, none; any and a tool where engines have a grammar back-end; disable_parallel_tool_use"),
    "thinking": works("given to the chat template as enable_thinking and thinking; budget_tokens has no effect"),
    "output_config": works("effort, to the chat template; format json_schema, where engines have a grammar back-end"),
    "output_format": works("as output_config's format"),
    "context_management": only(
        {"edits": []},
        {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        note="nothing is left out of a conversation: give no edits",
    ),
    "container": refused("nothing is run here"),
    "mcp_servers": refused("no tool is called from here: give it as a tool of the client"),
    "metadata": no_effect("kept in the raw request"),
    "service_tier": no_effect("there is one"),
    "cache_control": no_effect("prefixes are cached by their tokens; so in blocks and tools"),
    "inference_geo": no_effect("there is one place"),
    "speed": no_effect("there is one"),
    "diagnostics": no_effect("the run's log has them"),
    "user_profile_id": no_effect("kept in the raw request"),
    "workspace_id": no_effect("kept in the raw request"),
}
_BILLING = "x-anthropic-billing-header:"
"""How a block of the system begins that Claude Code puts there for its server: another one each time, and no prompt."""

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
    """See `Dialect`."""

    name = DialectName.MESSAGES
    items = "messages"

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return _Messages(messages)

    def read(self, request: fields.Object, told: Conversation) -> Asked:
        asked = self.read_count(request, told)
        get(request, "max_tokens", int, "")
        return asked

    def read_count(self, request: fields.Object, told: Conversation) -> Asked:
        """A request whose tokens are to be counted: it may say no `max_tokens`. Raises BadField."""
        sampling = fields.read_fields(FIELDS, request)
        config = get(request, "output_config", dict, "", {})
        sampling |= _shape(get(config, "format", dict, "output_config", {}), "output_config.format")
        sampling |= _shape(get(request, "output_format", dict, "", {}), "output_format")
        check_grammar(sampling)
        tools = _tools(get(request, "tools", list, "", []))
        choice = get(request, "tool_choice", dict, "", {"type": "auto"})
        effort = get(config, "effort", str, "output_config", "")
        template = (effort_template(effort) if effort else {}) | _thinking(request)
        return Asked(
            dialect=self.name,
            model=get(request, "model", str, ""),
            messages=_conversation(request, told),
            tools=tools,
            tool_choice=_choice(choice, tools),
            parallel=not get(choice, "disable_parallel_tool_use", bool, "tool_choice", False),
            sampling=sampling,
            template=template | fields.template_arguments(request),
            stream=get(request, "stream", bool, "", False),
            skip_special=fields.maybe(request, "skip_special_tokens", bool),
            body=request,
        )

    def counted(self, prompt_tokens: int) -> dict[str, Any]:
        """The answer to a request to count."""
        return {"input_tokens": prompt_tokens}

    def whole(self, asked: Asked, said: Said) -> dict[str, Any]:
        blocks: list[dict[str, Any]] = []
        if reasoning := said.message.get("reasoning_content"):
            hidden = _hides(asked)
            shown, signature = "" if hidden else reasoning, _signature(reasoning, hidden)
            blocks.append({"type": "thinking", "thinking": shown, "signature": signature})
        if text := said.message["content"]:
            blocks.append(EMPTY | {"text": text})
        blocks += [_call(id, name, arguments_of(arguments)) for id, name, arguments in calls_of(said.message)]
        message = _message(asked, said.id, said.prompt_tokens)
        return message | {
            "content": blocks or [EMPTY],
            **_end(asked, said),
            "usage": _usage(said.prompt_tokens, said),
        }

    def stream(self, asked: Asked, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return _Stream(asked, id, prompt_tokens)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        told = f"{field}: {message}" if field else message
        return {"type": "error", "error": {"type": kind, "message": told}, "request_id": None}


class _Stream:
    """See `Encoder`. One block is open at a time."""

    def __init__(self, asked: Asked, id: str, prompt_tokens: int) -> None:
        self._asked, self._id, self._prompt_tokens = asked, id, prompt_tokens
        self._index, self._open = -1, ""
        self._thought = ""

    def begin(self) -> bytes:
        message = _message(self._asked, self._id, self._prompt_tokens)
        return sse.named({"type": "message_start", "message": message}) + sse.named({"type": "ping"})

    def part(self, part: Part) -> bytes:
        match part:
            case Content(text):
                begun = self._begin(EMPTY) if text else b""
                return begun + (self._delta({"type": "text_delta", "text": text}) if text else b"")
            case Reasoning(text):
                begun = self._begin({"type": "thinking", "thinking": "", "signature": ""})
                self._thought += text
                hidden = _hides(self._asked)
                return begun + (b"" if hidden else self._delta({"type": "thinking_delta", "thinking": text}))
            case CallBegun(_, id, name):
                return self._close() + self._begin(_call(id, name, {}))
            case CallArguments(_, text):
                return self._delta({"type": "input_json_delta", "partial_json": text})

    def end(self, said: Said) -> bytes:
        empty = self._begin(EMPTY) if self._index < 0 else b""
        last = {"type": "message_delta", "delta": _end(self._asked, said), "usage": _usage(said.prompt_tokens, said)}
        return empty + self._close() + sse.named(last) + sse.named({"type": "message_stop"})

    def fail(self, status: int, message: str) -> bytes:
        return sse.named(Messages().refusal(status, message))

    def _begin(self, block: dict[str, Any]) -> bytes:
        if self._open == block["type"]:
            return b""
        closed = self._close()
        self._index, self._open = self._index + 1, block["type"]
        return closed + sse.named({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        signed = b""
        if self._open == "thinking":
            signature = _signature(self._thought, _hides(self._asked))
            signed, self._thought = self._delta({"type": "signature_delta", "signature": signature}), ""
        self._open = ""
        return signed + sse.named({"type": "content_block_stop", "index": self._index})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return sse.named({"type": "content_block_delta", "index": self._index, "delta": delta})


def _message(asked: Asked, id: str, prompt_tokens: int) -> dict[str, Any]:
    """A message that has just begun."""
    return {
        "id": f"msg_{id}",
        "type": "message",
        "role": "assistant",
        "model": asked.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": _usage(prompt_tokens),
    }


def _call(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments, "caller": {"type": "direct"}}


def _end(asked: Asked, said: Said) -> dict[str, Any]:
    if said.stop is not StopReason.STOP:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if calls_of(said.message):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if said.matched in (asked.body.get("stop_sequences") or ()):
        return {"stop_reason": "stop_sequence", "stop_sequence": said.matched}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def _usage(prompt_tokens: int, said: Said | None = None) -> dict[str, Any]:
    """Tokens that were in the engine's cache count apart here."""
    cached = said.cached_tokens if said else 0
    return {
        "input_tokens": max(0, prompt_tokens - cached),
        "output_tokens": len(said.tokens) if said else 0,
        "output_tokens_details": {"thinking_tokens": said.reasoning_tokens if said else 0},
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "cache_creation": None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def _hides(asked: Asked) -> bool:
    """Whether the client wants to see no thinking. Its signature has it then, to come back."""
    return (asked.body.get("thinking") or {}).get("display") == "omitted"


def _signature(thinking: str, hidden: bool) -> str:
    return carry(thinking) if hidden else hashlib.sha256(thinking.encode()).hexdigest()


class _Messages(Conversation):
    def add(self, item: dict[str, Any], path: str) -> None:
        role = get(item, "role", str, path)
        content, where = item.get("content"), under(path, "content")
        if role == "system":
            self.messages.append({"role": "system", "content": text_of(content, where)})
        elif role == "assistant":
            self.messages.append(_said(_blocks(content, where)))
        elif role == "user":
            self.messages += _told(_blocks(content, where))
        else:
            bad(under(path, "role"), "this has to be user or assistant")


def _conversation(request: fields.Object, told: Conversation) -> tuple[dict[str, Any], ...]:
    system = _system(request.get("system"))
    given = get(request, "messages", list, "")
    told.take(items(given, "messages"))
    if not told.messages:
        bad("messages", "there has to be a message")
    if told.messages[-1]["role"] == "assistant":
        bad(
            f"messages.{len(given) - 1}.role", "the last message cannot be the assistant's: no answer is continued here"
        )
    return leading_system([{"role": "system", "content": system}, *told.messages] if system else told.messages)


def _system(given: Any) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    texts = (text_of([block], f"system.{at}") for at, block in enumerate(fields.take(given, list, "system")))
    return "\n".join(text for text in texts if not text.startswith(_BILLING))


def _blocks(content: Any, path: str) -> list[tuple[dict[str, Any], str]]:
    if isinstance(content, str):
        return [({"type": "text", "text": content}, path)]
    if content is None:
        bad(path, "this is missing")
    return items(fields.take(content, list, path), path)


def _said(blocks: Sequence[tuple[dict[str, Any], str]]) -> dict[str, Any]:
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
                bad(under(path, "type"), f"a block of the assistant's cannot be {kind!r} here")
    return assistant(text, thinking, calls)


def _told(blocks: Sequence[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """What the user says, and what tools returned: each a message of its own, in their order."""
    found: list[dict[str, Any]] = []
    for block, path in blocks:
        match block.get("type"):
            case "text":
                text = get(block, "text", str, path)
                if found and found[-1]["role"] == "user":
                    text = f"{found.pop()['content']}\n{text}"
                found.append({"role": "user", "content": text})
            case "tool_result":
                content = text_of(get(block, "content", object, path, ""), under(path, "content"))
                found.append({"role": "tool", "tool_call_id": get(block, "tool_use_id", str, path), "content": content})
            case kind:
                bad(under(path, "type"), f"the model reads text and results of tools, and no {kind}")
    return found or [{"role": "user", "content": ""}]


def _tools(given: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    found = []
    for tool, path in items(given, "tools"):
        if tool.get("type") not in (None, "custom"):
            bad(under(path, "type"), "no tool runs here: a tool has to be the client's")
        found.append(function(tool, path, "input_schema"))
    return tuple(found)


def _choice(choice: fields.Object, tools: Sequence[fields.Object]) -> str:
    match choice.get("type"):
        case "auto" | "none" as word:
            return str(word)
        case "any":
            return check_choice("required", tools, "tool_choice.type")
        case "tool":
            name = get(choice, "name", str, "tool_choice")
            return check_choice(name, tools, "tool_choice.name")
    raise BadField("tool_choice.type", "this has to be auto, any, tool or none")


def _thinking(request: fields.Object) -> dict[str, Any]:
    thinking = get(request, "thinking", dict, "", {})
    match thinking.get("type"):
        case None:
            return {}
        case "enabled" | "adaptive":
            return {"enable_thinking": True, "thinking": True}
        case "disabled":
            return {"enable_thinking": False, "thinking": False}
    raise BadField("thinking.type", "this has to be enabled, adaptive or disabled")


def _shape(form: fields.Object, path: str) -> dict[str, str]:
    if not form:
        return {}
    if form.get("type") != "json_schema":
        bad(under(path, "type"), "this has to be json_schema")
    return schema_sampling(form.get("schema"), under(path, "schema"))
