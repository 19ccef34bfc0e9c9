"""Renders chats as the model's prompts: with its template (`Rendering`), or by the `renderers` library (`Renderers`).

The library continues a chat after generated tokens, for models that it supports. It finds a model by its name. A
checkpoint's folder may have a model's name and a different template. So the library is used only if it renders some
test chats exactly as the template does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from schemas.text import message_text, valid_text
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField
from serve_apps.rollouts.agents.attach import Message, PriorTurn, arguments_of, content_of
from slime_events.core.checkpoint.context import LONG_CONTEXT
from slime_events.plugins.tokenizer import Tokenizer, has_far_more

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": {"word": "slime"}}}
_QUESTION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "What is it?"},
]
_CALLED: list[dict[str, Any]] = [
    *_QUESTION,
    {"role": "assistant", "content": "I look.", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "A framework."},
]
"""Test chats that differ between templates."""


class ChatTokenizer(Tokenizer, Protocol):
    """More of a transformers tokenizer, for chats and for single tokens."""

    name_or_path: str
    chat_template: str | None
    eos_token_id: int | None
    pad_token_id: int | None

    @property
    def added_tokens_decoder(self) -> Mapping[int, object]:
        """Tokens that were added to the vocabulary, by id."""

    def convert_ids_to_tokens(self, ids: int) -> str | None:
        """Return a token as the vocabulary writes it."""


class Rendering:
    """Renders chats of one model.

    template: the run's `--apply-chat-template-kwargs`, which a request's own arguments override. longest: prompt limit
    in tokens.
    """

    def __init__(
        self, tokenizer: ChatTokenizer, template: Mapping[str, Any] | None = None, longest: int = LONG_CONTEXT
    ) -> None:
        self.tokenizer, self._template, self._longest = tokenizer, dict(template or {}), longest

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        template: Mapping[str, Any] | None = None,
        *,
        asks: bool = True,
    ) -> str:
        """Return a chat as text. asks: end with the generation prompt. Raises BadField if the template refuses it."""
        more = self.arguments(template) | ({"tools": list(tools)} if tools else {})
        plain, errors = [for_template(message) for message in messages], list[Exception]()
        for chat in (plain, [_with_json(message) for message in plain]):  # some templates take arguments as JSON only
            try:
                text = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=asks, **more)
                return valid_text(str(text))
            except Exception as error:  # a template is a program of the model's authors and raises any error
                errors.append(error)
        raise BadField("messages", f"the model's chat template refuses them: {message_text(errors[0])}")

    def arguments(self, template: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the run's chat template arguments, overridden by a request's."""
        return self._template | dict(template or {})

    def ids(self, text: str, field: str = "messages") -> Tokens:
        """Return the token ids of a text, int32, without added special tokens.

        Raises BadField for this field if the text has far more tokens than the context.
        """
        text = valid_text(text)
        if has_far_more(self.tokenizer, text, self._longest):
            message = f"{len(text):,} characters do not fit in a context of {self._longest:,} tokens: send fewer"
            raise BadField(field, message)
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), np.int32)

    def decode(self, ids: Tokens) -> str:
        """Return the text of token ids, with special tokens and without clean-up of spaces."""
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def ends(self, generated: Tokens, new: Tokens, *, closes: bool) -> bool:
        """Return whether the model already generated the first of the new ids, a special token.

        closes: this token ends an answer, and the model may have generated its own end token instead. If false, this
        token opens the next message.
        """
        if not len(generated) or not len(new) or int(new[0]) not in self.tokenizer.added_tokens_decoder:
            return False
        others = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} if closes else set()
        return int(generated[-1]) in {int(new[0])} | others


def for_template(message: Message) -> dict[str, Any]:
    """Return a message in the form of chat templates: content is text, arguments of calls are objects."""
    plain = {key: value for key, value in message.items() if value is not None} | {"content": content_of(message)}
    plain["role"] = "system" if message["role"] == "developer" else message["role"]
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _call(call: Message) -> dict[str, Any]:
    function = dict(call.get("function", call))
    arguments = arguments_of(function)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}  # a call without arguments: a template would print nothing, which is not JSON
    return {"type": "function", **call, "function": function | {"arguments": arguments}}


def _with_json(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        call | {"function": call["function"] | _as_json(call["function"])} for call in message.get("tool_calls", ())
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _as_json(function: dict[str, Any]) -> dict[str, str]:
    arguments = function["arguments"]
    return {"arguments": arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)}


class Renderer(Protocol):
    """A renderer of the library."""

    def render_ids(
        self, messages: Sequence[Message], *, tools: Sequence[Message] | None, add_generation_prompt: bool
    ) -> list[int]: ...

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None,
    ) -> "_RenderedTokens | None": ...


class _RenderedTokens(Protocol):
    """Result of a renderer."""

    token_ids: list[int]


class Renderers:
    """Creates a renderer for each set of template arguments. A model that the library does not support has none."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._name = known_name(str(rendering.tokenizer.name_or_path))
        self._renderers: dict[str, Renderer | None] = {}

    def new_ids(self, request: AgentRequest, at: int, turn: PriorTurn) -> Tokens | None:
        """Return the ids after a turn's tokens, int32; None if no renderer finds them. at: index of its answer."""
        if not self._name or (renderer := self._renderer(request.template)) is None:
            return None
        names = {call.get("id"): call["function"]["name"] for call in request.messages[at].get("tool_calls") or ()}
        new = [for_template(message) for message in request.messages[at + 1 :]]
        for message in new:
            if message["role"] == "tool" and message.get("tool_call_id") in names:
                message.setdefault("name", names[message["tool_call_id"]])
        # The renderer needs the end of the prompt. The turn's own part contains it and does not grow with the session.
        before, generated = turn.observed.tolist(), turn.generated.tolist()
        bridged = renderer.bridge_to_next_turn(before, generated, new, tools=list(request.tools) or None)
        if bridged is None or bridged.token_ids[: len(before) + len(generated)] != before + generated:
            return None
        return np.array(bridged.token_ids[len(before) + len(generated) :], np.int32)

    def _renderer(self, template: Mapping[str, Any]) -> Renderer | None:
        arguments = self._rendering.arguments(template)
        key = json.dumps(arguments, sort_keys=True)
        if key not in self._renderers:
            self._renderers[key] = _proven(self._rendering, self._name, arguments)
        return self._renderers[key]


def known_name(model: str) -> str:
    """Return the library's renderer for a model, or empty.

    model: a model's name, or a folder with that name: `/models/Qwen3-4B`, or a snapshot in Hugging Face's cache.
    """
    from renderers.base import MODEL_RENDERER_MAP

    cached = re.search(r"models--([^/]+)--([^/]+)/snapshots", model)
    folder = cached[2] if cached else model.rstrip("/").rpartition("/")[2]
    names = {name.rpartition("/")[2]: renderer for name, renderer in MODEL_RENDERER_MAP.items()}
    return str(MODEL_RENDERER_MAP.get(model) or names.get(folder, ""))


def _proven(rendering: Rendering, name: str, arguments: dict[str, Any]) -> Renderer | None:
    """Return the renderer if it renders the test chats as the template does, otherwise None."""
    from renderers import config_from_name, create_renderer

    try:
        config = config_from_name(name)
        renderer: Renderer = create_renderer(rendering.tokenizer, config, chat_template_kwargs=arguments)
        for chat, tools in ((_QUESTION, None), (_CALLED, [_TOOL])):
            ids = renderer.render_ids(chat, tools=tools, add_generation_prompt=True)
            if ids != rendering.ids(rendering.text(chat, tools or (), arguments)).tolist():
                return None
    except Exception:  # the library raises any error for a wrong tokenizer, unknown arguments or missing files
        return None
    return renderer
