"""OpenAI's Responses. Nothing is stored for it: a client sends the whole conversation, as with `store: false`."""

from collections.abc import Iterable, Sequence
from typing import Any

from serve_apps.agents.asked import Asked, BadField, DialectName, Encoder, Said
from serve_apps.agents.canonical import Call, Conversation, assistant, carried, leading_system
from serve_apps.agents.dialects import fields
from serve_apps.agents.dialects.chat import OPENAI, openai_error, text_of
from serve_apps.agents.dialects.fields import bad, get, items, no_effect, only, refused, sampled, under, works
from serve_apps.agents.dialects.responses_stream import ENCRYPTED, LOG_PROBS, ResponsesStream, items_of, resource
from serve_apps.agents.dialects.tools import check_grammar, effort_template, function, openai_choice, schema_sampling

_WHOLE = "answers are not kept for this API: send the whole conversation as input"
FIELDS: fields.Fields = OPENAI | {
    "input": works("a text, or items: message, function_call, function_call_output, reasoning"),
    "instructions": works("a system message before the others"),
    "max_output_tokens": sampled("max_new_tokens", fields.integer(1)),
    "reasoning": works("effort: to the chat template. summary: the reasoning is the summary, not reasoning_text"),
    "text": works("format: json_object, json_schema, as response_format of chat; verbosity"),
    "include": works(f"{LOG_PROBS}, {ENCRYPTED}"),
    "store": only(False, note=f"{_WHOLE}: false"),
    "background": only(False, note="a client waits for its answer: false"),
    "truncation": only("disabled", note="nothing is left out of a conversation: disabled"),
    "previous_response_id": refused(_WHOLE),
    "conversation": refused(_WHOLE),
    "prompt": refused("no prompts are kept here: send the text"),
    "context_management": refused("nothing is left out of a conversation"),
    "max_tool_calls": no_effect("it counts calls of tools that the server runs, and there are none"),
    "stream_options": no_effect("events are not padded"),
    "client_metadata": no_effect("kept in the raw request"),
}


class Responses:
    """See `Dialect`."""

    name = DialectName.RESPONSES
    items = "input"

    def conversation(self, messages: Iterable[dict[str, Any]] = ()) -> Conversation:
        return _Items(messages)

    def read(self, request: fields.Object, told: Conversation) -> Asked:
        sampling = fields.read_fields(FIELDS, request)
        form = get(request, "text", dict, "", {})
        sampling |= _shape(get(form, "format", dict, "text", {"type": "text"}))
        check_grammar(sampling)
        effort = get(get(request, "reasoning", dict, "", {}), "effort", str, "reasoning", "")
        verbosity = get(form, "verbosity", str, "text", "")
        template = (effort_template(effort) if effort else {}) | ({"verbosity": verbosity} if verbosity else {})
        tools = _tools(get(request, "tools", list, "", []))
        return Asked(
            dialect=self.name,
            model=get(request, "model", str, ""),
            messages=_conversation(request, told),
            tools=tools,
            tool_choice=openai_choice(request.get("tool_choice"), tools),
            parallel=get(request, "parallel_tool_calls", bool, "", True),
            sampling=sampling,
            template=template | fields.template_arguments(request),
            stream=get(request, "stream", bool, "", False),
            log_probs=0 if LOG_PROBS in get(request, "include", list, "", []) else None,
            skip_special=fields.maybe(request, "skip_special_tokens", bool),
            body=request,
        )

    def whole(self, asked: Asked, said: Said) -> dict[str, Any]:
        return resource(asked, said.id, said.created, items_of(asked, said), said)

    def stream(self, asked: Asked, id: str, created: int, prompt_tokens: int = 0) -> Encoder:
        return ResponsesStream(asked, id, created)

    def refusal(self, status: int, message: str, field: str = "") -> dict[str, Any]:
        return openai_error(status, message, field)


def _conversation(request: fields.Object, told: Conversation) -> tuple[dict[str, Any], ...]:
    given = request.get("input")
    if isinstance(given, str):
        told.messages.append({"role": "user", "content": given})
    else:
        told.take(items(get(request, "input", list, ""), "input"))
    if not told.messages:
        bad("input", "there has to be an item")
    instructions = get(request, "instructions", str, "", "")
    head = [{"role": "system", "content": instructions}] if instructions else []
    return leading_system([*head, *told.messages])


class _Items(Conversation):
    """One answer is several items here: those that follow each other are one message, until a message follows a
    message.
    """

    def __init__(self, messages: Iterable[dict[str, Any]] = ()) -> None:
        super().__init__(messages)
        self._answer = _Answer()

    def add(self, item: dict[str, Any], path: str) -> None:
        kind = item.get("type") or "message"
        is_said = kind == "message" and get(item, "role", str, path) == "assistant"
        if (is_said and self._answer.ends_in_text) or not (is_said or kind in ("reasoning", "function_call")):
            self.close()
        if is_said or kind in ("reasoning", "function_call"):
            self._answer.add(kind, item, path)
        else:
            self.messages.append(_other(kind, item, path))

    @property
    def is_open(self) -> bool:
        return self._answer.is_there

    def close(self) -> None:
        self.messages += self._answer.taken()


class _Answer:
    """The items of one answer, as they come."""

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

    def taken(self) -> list[dict[str, Any]]:
        """The message, if there is one; another begins."""
        made = [assistant(self._text, self._reasoning, self._calls)] if self.is_there else []
        self.__init__()  # type: ignore[misc]
        return made


def _reasoning(item: fields.Object, path: str) -> str:
    """Its text, wherever the client kept it."""
    for name in ("content", "summary"):
        where = under(path, name)
        if text := "".join(get(part, "text", str, at) for part, at in items(get(item, name, list, path, []), where)):
            return text
    sealed = get(item, "encrypted_content", str, path, "")
    return carried(sealed)


def _other(kind: str, item: fields.Object, path: str) -> dict[str, Any]:
    if kind == "message":
        role = get(item, "role", str, path)
        if role not in ("user", "system", "developer"):
            bad(under(path, "role"), "this has to be user, system, developer or assistant")
        content = text_of(item.get("content"), under(path, "content"))
        return {"role": "user" if role == "user" else "system", "content": content}
    if kind == "function_call_output":
        output = text_of(item.get("output"), under(path, "output"))
        return {"role": "tool", "tool_call_id": get(item, "call_id", str, path), "content": output}
    if kind == "item_reference":
        bad(under(path, "type"), f"{_WHOLE}, and no references to items (store: false)")
    raise BadField(under(path, "type"), f"an item cannot be {kind!r} here")


def _tools(given: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    found = []
    for tool, path in items(given, "tools"):
        if tool.get("type") != "function":
            bad(under(path, "type"), "no tool runs here: a tool has to be a function")
        found.append(function(tool, path))
    return tuple(found)


def _shape(form: fields.Object) -> dict[str, str]:
    match form.get("type"):
        case "text":
            return {}
        case "json_object":
            return schema_sampling({"type": "object"}, "")
        case "json_schema":
            return schema_sampling(form.get("schema"), "text.format.schema")
    raise BadField("text.format.type", "this has to be text, json_object or json_schema")
