"""The `renderers` library, for models that it knows: how a chat goes on after what the engine has generated.

It knows a model by its name. A checkpoint's folder may bear a model's name and hold another template: what the library
makes of some chats has to be what the template makes of them, else it is not used.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from serve_apps.agents.asked import AgentRequest
from serve_apps.agents.attach import PriorTurn
from serve_apps.agents.rendering import Rendering, for_template
from serve_apps.engine.engine import Tokens

_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": {"word": "slime"}}}
_ASKED: list[dict[str, Any]] = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "What is it?"}]
_CALLED: list[dict[str, Any]] = [
    *_ASKED,
    {"role": "assistant", "content": "I look.", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "name": "look_up", "content": "A framework."},
]
"""Chats by which a template is told from another."""


class Renderers:
    """One renderer for each set of the template's arguments; none for a model that the library does not know."""

    def __init__(self, rendering: Rendering) -> None:
        self._rendering = rendering
        self._name = known_name(str(rendering.tokenizer.name_or_path))
        self._made: dict[str, Any] = {}

    def new_ids(self, asked: AgentRequest, at: int, turn: PriorTurn) -> Tokens | None:
        """Ids of what comes after the turn's tokens, whose answer is message `at`. None: it cannot tell."""
        if not self._name or (renderer := self._renderer(asked.template)) is None:
            return None
        names = {call.get("id"): call["function"]["name"] for call in asked.messages[at].get("tool_calls") or ()}
        new = [for_template(message) for message in asked.messages[at + 1 :]]
        for message in new:
            if message["role"] == "tool" and message.get("tool_call_id") in names:
                message.setdefault("name", names[message["tool_call_id"]])
        # Of the prompt it needs what opens the answer. The turn's own part has it, and does not grow with the session.
        before, generated = turn.observed.tolist(), turn.generated.tolist()
        bridged = renderer.bridge_to_next_turn(before, generated, new, tools=list(asked.tools) or None)
        if bridged is None or bridged.token_ids[: len(before) + len(generated)] != before + generated:
            return None
        return np.array(bridged.token_ids[len(before) + len(generated) :], np.int32)

    def _renderer(self, template: Mapping[str, Any]) -> Any:
        arguments = self._rendering.arguments(template)
        key = json.dumps(arguments, sort_keys=True)
        if key not in self._made:
            self._made[key] = _proven(self._rendering, self._name, arguments)
        return self._made[key]


def known_name(model: str) -> str:
    """The library's renderer for a model's name, or for a folder that bears one: `/models/Qwen3-4B`, or a snapshot of
    Hugging Face's cache. Empty where there is none.
    """
    from renderers.base import MODEL_RENDERER_MAP

    cached = re.search(r"models--([^/]+)--([^/]+)/snapshots", model)
    folder = cached[2] if cached else model.rstrip("/").rpartition("/")[2]
    names = {name.rpartition("/")[2]: renderer for name, renderer in MODEL_RENDERER_MAP.items()}
    return str(MODEL_RENDERER_MAP.get(model) or names.get(folder, ""))


def _proven(rendering: Rendering, name: str, arguments: dict[str, Any]) -> Any:
    """The renderer, if it makes the same ids of the chats as the template. None: it does not, or cannot be made."""
    from renderers import config_from_name, create_renderer

    try:
        renderer = create_renderer(rendering.tokenizer, config_from_name(name), chat_template_kwargs=arguments)
        for chat, tools in ((_ASKED, None), (_CALLED, [_TOOL])):
            made = renderer.render_ids(chat, tools=tools, add_generation_prompt=True)
            if made != rendering.ids(rendering.text(chat, tools or (), arguments)).tolist():
                return None
    except Exception:  # another tokenizer than the name says, arguments that it does not know, files it does not have
        return None
    return renderer
