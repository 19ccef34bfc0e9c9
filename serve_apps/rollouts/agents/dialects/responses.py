"""OpenAI's Responses, without stored responses: a client sends the whole conversation, as with `store: false`."""

from collections.abc import Iterable, Sequence
from typing import Any

from serve_apps.rollouts.agents.agent_request import AgentRequest, Answer, BadField, DialectName, Encoder
from serve_apps.rollouts.agents.canonical import Call, Conversation, assistant, carried, leading_system
from serve_apps.rollouts.agents.dialects import fields
from serve_apps.rollouts.agents.dialects.chat import OPENAI, openai_error, text_of
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
    under,
    works,
)
from serve_apps.rollouts.agents.dialects.responses_stream import (
    ENCRYPTED,
    LOG_PROBS,
    ResponsesStream,
    items_of,
    resource,
)

_WHOLE = "this API stores no responses, send the whole conversation as input"
FIELDS: fields.Fields = OPENAI | {
    "input": works("a string, or a list of items: message, function_call, function_call_output, reasoning"),
    "instructions": works("a system message before the others"),
    "max_output_tokens": sampled("max_new_tokens", fields.integer(1)),
    "reasoning": works("effort: passed to the chat template. summary: reasoning is sent as summary_text"),
    "text": works("format: json_object, json_schema, as response_format of chat; verbosity"),
    "include": works(f"{LOG_PROBS}, {ENCRYPTED}"),
    "store": only(False, note=f"must be false: {_WHOLE}"),
    "background": only(False, note="must be false: a client waits for its answer"),
    "truncation": only("disabled", note="must be disabled: the gateway removes nothing from a conversation"),
    "previous_response_id": refused(f"not supported: {_WHOLE}"),
    "conversation": refused(f"not supported: {_WHOLE}"),
    "prompt": refused("not supported: the gateway stores no prompts, send the text"),
    "context_management": refused("not supported: the gateway removes nothing from a conversation"),
    "max_tool_calls": no_effect("it limits tools that a server runs, and the gateway runs none"),
    "stream_options": no_effect("events are not padded"),
    "client_metadata": no_effect("stored with the raw request"),
}


class Responses:
    name = DialectName.RESPONSES
    items = "input"

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return _Items(messages)

    def read(self, body: fields.Object, conversation: Conversation) -> AgentRequest:
        sampling = fields.read_fields(FIELDS, body)
        form = get(body, "text", dict, "", {})
        sampling |= _shape(get(form, "format", dict, "text", {"type": "text"}))
        check_grammar(sampling)
        effort = get(get(body, "reasoning", dict, "", {}), "effort", str, "reasoning", "")
        verbosity = get(form, "verbosity", str, "text", "")
        template = (effort_template(effort) if effort else {}) | ({"verbosity": verbosity} if verbosity else {})
        tools = _tools(get(body, "tools", list, "", []))
        return AgentRequest(
            dialect=self.name,
            model=get(body, "model", str, ""),
            messages=_conversation(body, conversation),
            tools=tools,
            tool_choice=openai_choice(body.get("tool_choice"), tools),
            parallel=get(body, "parallel_tool_calls", bool, "", True),
            sampling=sampling,
            template=template | fields.template_arguments(body),
            stream=get(body, "stream", bool, "", False),
            log_probs=0 if LOG_PROBS in get(body, "include", list, "", []) else None,
            skip_special=fields.maybe(body, "skip_special_tokens", bool),
            body=body,
        )

    def whole(self, request: AgentRequest, answer: Answer) -> dict[str, Any]:
        return resource(request, answer.id, answer.created, items_of(request, answer), answer)

    def stream(self, request: AgentRequest, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return ResponsesStream(request, id, created)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        return openai_error(status, message, field)


def _conversation(body: fields.Object, conversation: Conversation) -> tuple[dict[str, Any], ...]:
    text = body.get("input")
    if isinstance(text, str):
        conversation.messages.append({"role": "user", "content": text})
    else:
        conversation.take(items(get(body, "input", list, ""), "input"))
    if not conversation.messages:
        bad("input", "must have at least one item")
    instructions = get(body, "instructions", str, "", "")
    head = [{"role": "system", "content": instructions}] if instructions else []
    return leading_system([*head, *conversation.messages])


class _Items(Conversation):
    """Joins adjacent items of an answer to one message. A second `message` item begins the next message."""

    def __init__(self, messages: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(messages)
        self._answer = _Answer()

    def add(self, item: dict[str, Any], path: str) -> None:
        kind = item.get("type") or "message"
        is_text = kind == "message" and get(item, "role", str, path) == "assistant"
        is_answer = is_text or kind in ("reasoning", "function_call")
        if (is_text and self._answer.ends_in_text) or not is_answer:
            self.close()
        if is_answer:
            self._answer.add(kind, item, path)
        else:
            self.messages.append(_other(kind, item, path))

    @property
    def is_open(self) -> bool:
        return self._answer.is_there

    def close(self) -> None:
        if self._answer.is_there:
            self.messages.append(self._answer.message)
            self._answer = _Answer()


class _Answer:
    """Items of one answer."""

    def __init__(self) -> None:
        self._text, self._reasoning = "", ""
        self._calls: list[Call] = []
        self.ends_in_text = self.is_there = False

    def add(self, kind: str, item: fields.Object, path: str) -> None:
        self.is_there, self.ends_in_text = True, kind == "message"
        if kind == "message":
            self._text += text_of(item.get("content"), under(path, "content"), between="")
        elif kind == "reasoning":
            self._reasoning += _reasoning(item, path)
        else:
            name, arguments = get(item, "name", str, path), get(item, "arguments", str, path)
            self._calls.append(Call(get(item, "call_id", str, path), name, arguments))

    @property
    def message(self) -> dict[str, Any]:
        return assistant(self._text, self._reasoning, self._calls)


def _reasoning(item: fields.Object, path: str) -> str:
    """Return the text of a reasoning item, from the field in which the client sends it back."""
    for name in ("content", "summary"):
        where = under(path, name)
        if text := "".join(get(part, "text", str, at) for part, at in items(get(item, name, list, path, []), where)):
            return text
    return carried(get(item, "encrypted_content", str, path, ""))


def _other(kind: str, item: fields.Object, path: str) -> dict[str, Any]:
    if kind == "message":
        role = get(item, "role", str, path)
        if role not in ("user", "system", "developer"):
            bad(under(path, "role"), "must be user, system, developer or assistant")
        content = text_of(item.get("content"), under(path, "content"))
        return {"role": "user" if role == "user" else "system", "content": content}
    if kind == "function_call_output":
        output = text_of(item.get("output"), under(path, "output"))
        return {"role": "tool", "tool_call_id": get(item, "call_id", str, path), "content": output}
    if kind == "item_reference":
        bad(under(path, "type"), f"item references are not supported: {_WHOLE}")
    raise BadField(under(path, "type"), f"an item cannot be {kind!r}")


def _tools(tools: Sequence[object]) -> tuple[dict[str, Any], ...]:
    functions = []
    for tool, path in items(tools, "tools"):
        if tool.get("type") != "function":
            bad(under(path, "type"), "must be function: the gateway runs no tools")
        functions.append(function(tool, path))
    return tuple(functions)


def _shape(form: fields.Object) -> dict[str, str]:
    match form.get("type"):
        case "text":
            return {}
        case "json_object":
            return schema_sampling({"type": "object"}, "")
        case "json_schema":
            return schema_sampling(form.get("schema"), "text.format.schema")
    raise BadField("text.format.type", "must be text, json_object or json_schema")
