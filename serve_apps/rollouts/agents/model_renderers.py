"""Uses the `renderers` library to continue a chat after generated tokens, for models that the library supports.

The library finds a model by its name. A checkpoint's folder may have a model's name and a different template. So the
library is used only if it renders some test chats exactly as the template does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.agents.agent_request import AgentRequest
from serve_apps.rollouts.agents.attach import Message, PriorTurn
from serve_apps.rollouts.agents.rendering import Rendering, for_template

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
