"""A chat template that loses what is no text, and messages for it."""

from collections.abc import Sequence
from typing import Any

QWEN_LIKE = (
    "{%- if tools %}{{ tools | tojson }}{% endif -%}"
    "{%- for m in messages %}"
    "{%- if m.content is string %}{% set said = m.content %}{% else %}{% set said = '' %}{% endif %}"
    "{{- '<' + m.role + '>' + said }}"
    "{%- if m.tool_calls is defined %}{%- for c in m.tool_calls %}{% set f = c.function if c.function else c %}"
    '{{- \'{"name": "\' + f.name + \'", "arguments": \' }}'
    "{%- if f.arguments is string %}{{ f.arguments }}{% else %}{{ f.arguments | tojson }}{% endif %}{{ '}' }}"
    "{%- endfor %}{% endif %}{%- if m.name is defined %}{{ '[' ~ m.name ~ ']' }}{% endif %}"
    "{%- endfor %}"
)
"""Prints nothing for a content that is not text, as Qwen3's does, and asks whether fields are there."""


class Templated:
    """A tokenizer of characters with a chat template that transformers renders."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, conversation: Sequence[Any], **kwargs: Any) -> str:
        return rendered(conversation, kwargs.get("tools"))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


def rendered(messages: Sequence[Any], tools: Any = None) -> str:
    """transformers' own rendering."""
    from transformers.utils.chat_template_utils import render_jinja_template

    (text,), _ = render_jinja_template(conversations=[list(messages)], tools=tools, chat_template=QWEN_LIKE)
    return str(text)


def call(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}], **more}


USER: dict[str, Any] = {"role": "user", "content": "2+2"}
