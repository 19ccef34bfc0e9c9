"""`read_messages`: the chat of a prompt as chat templates take it, or the field that no template can show.

Templates are lenient where it hurts: most print nothing for a content that is no text, so a question with an image, a
number or null becomes an empty one. What a template would lose is refused here; what is well-formed stays as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.content import BadContent, joined_text
from slime_events.loop.prompts.json_value import json_value

SHOWN = 8
"""Names that a message lists at most."""


class BadMessage(Exception):
    """A message that cannot be shown to the model. field: such as `messages[1].content`; message: one clause."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


def read_messages(messages: Sequence[Any], key: str) -> list[dict[str, Any]]:
    """Return the messages: parts joined to a text, null fields left out, empty call arguments as an empty object.

    key: names the field in errors. Raises BadMessage, and BadValue for what the log cannot carry.
    """
    return [_message(message, f"{key}[{at}]") for at, message in enumerate(messages)]


def names_of(holder: Mapping[str, Any]) -> str:
    """Return the names of some fields, for a sentence."""
    names = [f"{name!r:.80}" for name in list(holder)[:SHOWN]]
    more = f" and {len(holder) - SHOWN} more" if len(holder) > SHOWN else ""
    return ", ".join(names) + more if names else "nothing"


def _message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadMessage(path, f"a message has to be an object, not {_named(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        there = f"; there is {names_of(message)}" if role is None else f", not {_named(role)}"
        raise BadMessage(f"{path}.role", f"it has to be a text{there}")
    calls = _calls(message.get("tool_calls"), f"{path}.tool_calls")
    # A null field of Parquet, and of what was exported from it, is one that this message does not have.
    own = {name: value for name, value in message.items() if value is not None or name == "content"}
    if calls is not None:
        own["tool_calls"] = calls
    if role != "assistant" or not calls or message.get("content") is not None:  # calls alone may come with null
        own["content"] = _content(message, role, f"{path}.content")
    return dict(json_value(own, path))


def _content(message: Mapping[str, Any], role: str, path: str) -> str:
    content = message.get("content")
    if content is None:
        why = "it is null" if "content" in message else f"it is missing; there is {names_of(message)}"
        raise BadMessage(path, f"{why}: it has to be a text, or a list of text parts")
    if not isinstance(content, str | list):
        raise BadMessage(path, f"it has to be a text, or a list of text parts, not {_named(content)}")
    if content == []:
        raise BadMessage(path, "the list of parts is empty")
    try:
        return joined_text(content, "" if role == "assistant" else "\n")
    except BadContent as error:
        raise BadMessage(path + "".join(map(_step, error.path)), error.message) from None


def _calls(calls: Any, path: str) -> list[dict[str, Any]] | None:
    """Return the calls of a message; None where it has none."""
    if calls is None:
        return None
    if not isinstance(calls, list):
        raise BadMessage(path, f"it has to be a list of calls, not {_named(calls)}")
    return [_call(call, f"{path}[{at}]") for at, call in enumerate(calls)]


def _call(call: Any, path: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise BadMessage(path, f"a call has to be an object, not {_named(call)}")
    own = {name: value for name, value in call.items() if value is not None}
    function = own.get("function")
    if function is None and isinstance(own.get("name"), str):  # some data sets have the function's fields here
        return _function(own, path)
    if not isinstance(function, dict):
        raise BadMessage(f"{path}.function", f"it has to be an object with a name, not {_named(function)}")
    return {**own, "function": _function(function, f"{path}.function")}


def _function(function: Mapping[str, Any], path: str) -> dict[str, Any]:
    own = {name: value for name, value in function.items() if value is not None}
    if not isinstance(own.get("name"), str) or not own["name"]:
        raise BadMessage(f"{path}.name", f"it has to be a text; there is {names_of(function)}")
    arguments = own.get("arguments", {})
    if isinstance(arguments, bool | int | float):
        raise BadMessage(f"{path}.arguments", f"it has to be an object or its JSON, not {_named(arguments)}")
    if isinstance(arguments, str) and not arguments.strip():
        arguments = {}  # templates print an empty text as it is, and leave JSON without a value
    return {**own, "arguments": arguments}


def _named(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, int | float) else kinds.get(type(value), f"a {type(value).__name__}")


def _step(name: str | int) -> str:
    return f"[{name}]" if isinstance(name, int) else f".{name}"
