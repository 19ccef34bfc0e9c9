"""Chat messages as the model's template shows them, and as token ids."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from schemas.text import message_text, valid_text
from serve_apps.agents.asked import BadField
from serve_apps.agents.attach import Message, arguments_of, content_of
from serve_apps.engine.engine import Tokens
from slime_events.core.context import LONG_CONTEXT
from slime_events.plugins.tokenizer import has_far_more


class Rendering:
    """tokenizer: of transformers, with a chat template. template: the run's `--apply-chat-template-kwargs`, which a
    request's own override. longest: tokens of a prompt.
    """

    def __init__(self, tokenizer: Any, template: Mapping[str, Any] | None = None, longest: int = LONG_CONTEXT) -> None:
        self.tokenizer, self._template, self._longest = tokenizer, dict(template or {}), longest

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        template: Mapping[str, Any] | None = None,
        *,
        asks: bool = True,
    ) -> str:
        """asks: with the generation prompt. Raises BadField where the template refuses the messages."""
        more = self.arguments(template) | ({"tools": list(tools)} if tools else {})
        plain, errors = [for_template(message) for message in messages], list[Exception]()
        for given in (plain, [_with_json(message) for message in plain]):  # some templates take arguments as JSON alone
            try:
                made = self.tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=asks, **more)
                return valid_text(str(made))
            except Exception as error:  # whatever a template raises: it is a program of the model's authors
                errors.append(error)
        raise BadField("messages", f"the model's chat template refuses them: {message_text(errors[0])}")

    def arguments(self, template: Mapping[str, Any] | None) -> dict[str, Any]:
        """Of the template, for a request with its own."""
        return self._template | dict(template or {})

    def ids(self, text: str, field: str = "messages") -> Tokens:
        """Token ids of a text, without special tokens added. Raises BadField, about that field, where the context has
        by far no room for them.
        """
        text = valid_text(text)
        if has_far_more(self.tokenizer, text, self._longest):
            raise BadField(field, f"{len(text):,} characters: the context has room for {self._longest:,} tokens")
        return np.array(self.tokenizer.encode(text, add_special_tokens=False), np.int32)

    def decode(self, ids: Tokens) -> str:
        """With special tokens, and nothing cleaned up."""
        return str(self.tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def ends(self, generated: Tokens, new: Tokens, *, closes: bool) -> bool:
        """Whether the first of the new ids, a special token, has been generated. closes: it ends an answer, so that the
        model may have ended it with its own end token instead; else it opens the next message.
        """
        if not len(generated) or not len(new) or int(new[0]) not in self.tokenizer.added_tokens_decoder:
            return False
        others = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id} if closes else set()
        return int(generated[-1]) in {int(new[0])} | others


def for_template(message: Message) -> dict[str, Any]:
    """One message as chat templates take it: contents are texts, arguments objects."""
    plain = {key: value for key, value in message.items() if value is not None} | {"content": content_of(message)}
    plain["role"] = "system" if message["role"] == "developer" else message["role"]
    if calls := message.get("tool_calls"):
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _call(call: Message) -> dict[str, Any]:
    function = dict(call.get("function", call))
    arguments = arguments_of(function)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = {}  # a call without arguments; a template would print nothing, and JSON without a value is none
    return {"type": "function", **call, "function": function | {"arguments": arguments}}


def _with_json(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        call | {"function": call["function"] | _as_json(call["function"])} for call in message.get("tool_calls", ())
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _as_json(function: dict[str, Any]) -> dict[str, str]:
    given = function["arguments"]
    return {"arguments": given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}
