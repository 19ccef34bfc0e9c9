"""Canonical messages: one conversation has the same messages in every dialect and from every client."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from schemas.doc import doc
from schemas.text import valid_text

_CARRIER = "text:"


class Call(NamedTuple):
    """A call of a tool."""

    id: str
    name: str
    arguments: Annotated[str, doc("JSON text")]


def assistant(content: str = "", reasoning: str = "", calls: Iterable[Call] = ()) -> dict[str, Any]:
    """Return an assistant's message. `content` may be empty; other keys are left out if they are empty."""
    tool_calls = [
        {"id": id, "type": "function", "function": {"name": valid_text(name), "arguments": canonical_json(arguments)}}
        for id, name, arguments in calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": valid_text(content)}
    thought = {"reasoning_content": valid_text(reasoning)} if reasoning else {}
    return message | thought | ({"tool_calls": tool_calls} if tool_calls else {})


class Conversation:
    """Reads the messages of a request item by item.

    messages: complete messages, at first those before the items. counts: number of messages after each item; None if
    the next item may extend the last message.
    """

    def __init__(self, messages: Iterable[dict[str, Any]] = ()) -> None:
        self.messages = list(messages)
        self.counts: list[int | None] = []

    def take(self, items: Iterable[tuple[dict[str, Any], str]]) -> None:
        """Read items, each with its path: all items of a request, or those after the ones that `messages` cover."""
        for item, path in items:
            self.add(item, path)
            self.counts.append(None if self.is_open else len(self.messages))
        self.close()

    def add(self, item: dict[str, Any], path: str) -> None:
        """Read one item. Raises BadField."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether the next item may extend the last message."""
        return False

    def close(self) -> None:
        """End the last message."""


def calls_of(message: Mapping[str, Any]) -> list[Call]:
    """Return the calls of a canonical message."""
    return [
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]


def canonical_json(text: str) -> str:
    """Return arguments of a call as a client sends them back that has parsed them: with default spaces and escapes.

    Integers are written without `.0`. Text that is not JSON is returned as it is. A lone surrogate (`"\\ud83d"`)
    becomes U+FFFD.
    """
    try:
        normal = json.dumps(_plain(json.loads(text)), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return valid_text(text)
    return valid_text(normal)


def _plain(value: object) -> object:
    """Replace floats by equal integers, as JavaScript clients do: JavaScript has one number type."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def arguments_of(text: str) -> dict[str, Any]:
    """Return arguments as an object. Empty if the text is not a JSON object, for example because it is cut off."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}


def leading_system(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Join the leading system messages: most chat templates accept only one system message, at the beginning."""
    count = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return tuple(messages)
    text = "\n".join(message["content"] for message in messages[:count])
    return ({"role": "system", "content": text}, *messages[count:])


def carry(text: str) -> str:
    """Encode reasoning for a field that clients send back unread. It is not encrypted: agents may read it."""
    return _CARRIER + base64.urlsafe_b64encode(text.encode()).decode()


def carried(field: str) -> str:
    """Decode reasoning from `carry`; empty if another server wrote the field."""
    if not field.startswith(_CARRIER):
        return ""
    try:
        return base64.b64decode(field.removeprefix(_CARRIER), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
