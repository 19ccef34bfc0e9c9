"""Canonical messages: the same conversation is the same messages, whatever dialect tells it and whoever echoes it."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from schemas.text import valid_text

_CARRIER = "text:"


class Call(NamedTuple):
    """A call of a tool. arguments: JSON text."""

    id: str
    name: str
    arguments: str


def assistant(content: str = "", reasoning: str = "", calls: Iterable[Call] = ()) -> dict[str, Any]:
    """What the model said. content is there, if empty; the rest where there is some."""
    made = [
        {"id": id, "type": "function", "function": {"name": valid_text(name), "arguments": canonical_json(arguments)}}
        for id, name, arguments in calls
    ]
    message: dict[str, Any] = {"role": "assistant", "content": valid_text(content)}
    thought = {"reasoning_content": valid_text(reasoning)} if reasoning else {}
    return message | thought | ({"tool_calls": made} if made else {})


class Conversation:
    """The messages of a request, as they are read item by item. messages: before those items; whole ones alone.
    counts: after each item, how many there are, or None where the last may go on with the next item.
    """

    def __init__(self, messages: Iterable[dict[str, Any]] = ()) -> None:
        self.messages = list(messages)
        self.counts: list[int | None] = []

    def take(self, items: Iterable[tuple[dict[str, Any], str]]) -> None:
        """All items of a request, or those after the ones that `messages` are of; each with its path."""
        for item, path in items:
            self.add(item, path)
            self.counts.append(None if self.is_open else len(self.messages))
        self.close()

    def add(self, item: dict[str, Any], path: str) -> None:
        """One item. Raises BadField."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        """Whether a message is under way."""
        return False

    def close(self) -> None:
        """End what is under way."""


def calls_of(message: Mapping[str, Any]) -> list[Call]:
    """The calls of a canonical message."""
    return [
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls", ())
    ]


def canonical_json(text: str) -> str:
    """A call's arguments as a client gives them back that has read them: spaces, escapes and 1.0 for 1 are gone. As
    they are where they are no JSON. Half of a character, which JSON can name (`"\\ud83d"`), becomes U+FFFD.
    """
    try:
        found = json.dumps(_plain(json.loads(text)), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        return valid_text(text)
    return valid_text(found)


def _plain(value: Any) -> Any:
    """JavaScript has one kind of number."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def arguments_of(text: str) -> dict[str, Any]:
    """Arguments for an API that has an object in their place. Empty for what is no object, such as half of one."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def leading_system(messages: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The messages with those of the system at their head made one: most chat templates take one, and there alone."""
    count = next((at for at, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return tuple(messages)
    text = "\n".join(message["content"] for message in messages[:count])
    return ({"role": "system", "content": text}, *messages[count:])


def carry(text: str) -> str:
    """Reasoning in a field that clients give back without reading it. No secret: the agent may read it."""
    return _CARRIER + base64.urlsafe_b64encode(text.encode()).decode()


def carried(field: str) -> str:
    """What `carry` put there; empty for the field of another server."""
    if not field.startswith(_CARRIER):
        return ""
    try:
        return base64.b64decode(field.removeprefix(_CARRIER), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
