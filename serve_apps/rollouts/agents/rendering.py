"""Renders chat messages with the model's template, and tokenizes the text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from schemas.text import message_text, valid_text
from serve_apps.engines.engine import Tokens
from serve_apps.rollouts.agents.agent_request import BadField
from serve_apps.rollouts.agents.attach import Message, arguments_of, content_of
from slime_events.core.checkpoint.context import LONG_CONTEXT
from slime_events.plugins.tokenizer import Tokenizer, has_far_more


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
