"""`read_messages`: the chat of a prompt as chat templates accept it, or the field that no template can render.

Templates are too lenient: most print nothing for a content that is not a text, so a question with an image, a number or
null becomes empty. Content that a template would drop is refused here; well-formed messages stay as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from schemas.content import BadContent, joined_text
from slime_events.loop.prompts.json_value import json_value

SHOWN = 8
"""Most names that a message lists."""


class BadMessage(Exception):
    """A message that cannot be shown to the model. field: such as `messages[1].content`. message: a clause."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field, self.message = field, message


def read_messages(messages: Sequence[Any], key: str) -> list[dict[str, Any]]:
    """Return the messages: parts joined to a text, null fields left out, empty call arguments as an empty object.

    key: names the field in errors. Raises BadMessage, and BadValue for a value that the log cannot store.
    """
    return [_message(message, f"{key}[{at}]") for at, message in enumerate(messages)]


def names_of(holder: Mapping[str, Any]) -> str:
    """Return the names of some fields, for a sentence."""
    names = [f"{name!r:.80}" for name in list(holder)[:SHOWN]]
    more = f" and {len(holder) - SHOWN} more" if len(holder) > SHOWN else ""
    return ", ".join(names) + more if names else "nothing"


def _message(message: object, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadMessage(path, f"a message has to be an object, not {_named(message)}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        there = f"; there is {names_of(message)}" if role is None else f", not {_named(role)}"
        raise BadMessage(f"{path}.role", f"it has to be a text{there}")
    calls = _calls(message.get("tool_calls"), f"{path}.tool_calls")
    # In Parquet, and in exports from it, a null field means that the message does not have it.
    own = {name: value for name, value in message.items() if value is not None or name == "content"}
    if calls is not None:
        own["tool_calls"] = calls
    if role != "assistant" or not calls or message.get("content") is not None:  # a message with calls may have null
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


def _calls(calls: object, path: str) -> list[dict[str, Any]] | None:
    """Return the calls of a message; None if it has none."""
    if calls is None:
        return None
    if not isinstance(calls, list):
        raise BadMessage(path, f"it has to be a list of calls, not {_named(calls)}")
    return [_call(call, f"{path}[{at}]") for at, call in enumerate(calls)]


def _call(call: object, path: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise BadMessage(path, f"a call has to be an object, not {_named(call)}")
    own = {name: value for name, value in call.items() if value is not None}
    function = own.get("function")
    if function is None and isinstance(own.get("name"), str):  # some data sets put the function's fields here
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
        arguments = {}  # templates print an empty text verbatim, which is invalid JSON
    return {**own, "arguments": arguments}


def _named(value: object) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, int | float) else kinds.get(type(value), f"a {type(value).__name__}")


def _step(name: str | int) -> str:
    return f"[{name}]" if isinstance(name, int) else f".{name}"
