"""Tools, the choice among them, and the shape of an answer: what the APIs say alike, in different words."""

from collections.abc import Sequence
from typing import Any

from serve_apps.agents.dialects.fields import Object, bad, get, take, to_json, under
from serve_apps.engine.checks import GRAMMARS

ANY_OBJECT = {"type": "object"}


def function(holder: Object, path: str, parameters: str = "parameters") -> dict[str, Any]:
    """A tool as chat templates take it. holder: has its name, description, strict and, under the name in `parameters`,
    the JSON schema of its arguments.
    """
    schema = get(holder, parameters, dict, path, ANY_OBJECT | {"properties": {}})
    made: dict[str, Any] = {"name": _named(holder, path)}
    if description := get(holder, "description", str, path, ""):
        made["description"] = description
    made["parameters"] = schema
    if get(holder, "strict", bool, path, False):
        made["strict"] = True
    return {"type": "function", "function": made}


def _named(holder: Object, path: str) -> str:
    return get(holder, "name", str, path) or bad(under(path, "name"), "a tool has a name")


def check_choice(choice: str, tools: Sequence[Object], path: str) -> str:
    """Raises BadField for a choice that no tool is there for."""
    if choice in ("required", "auto", "none"):
        return choice if tools or choice != "required" else bad(path, "a tool is required, and none is given")
    if not any(tool["function"]["name"] == choice for tool in tools):
        bad(path, f"no tool of this request is named {choice}")
    return choice


def openai_choice(value: Any, tools: Sequence[Object], path: str = "tool_choice") -> str:
    """Of the two APIs of OpenAI's: a word, or an object with the function."""
    if value is None:
        return "auto"
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            bad(path, "this has to be auto, none, required or a function")
        return check_choice(value, tools, path)
    choice = take(value, dict, path)
    if choice.get("type") != "function":
        bad(under(path, "type"), "only a function can be chosen here")
    holder, where = (choice["function"], under(path, "function")) if "function" in choice else (choice, path)
    name = get(take(holder, dict, where), "name", str, where)
    if not any(tool["function"]["name"] == name for tool in tools):
        bad(under(where, "name"), f"no tool of this request is named {name}")
    return name


def schema_sampling(schema: Any, path: str) -> dict[str, str]:
    """The sampling under which an answer fits a JSON schema."""
    return {"json_schema": to_json(take(schema, dict, path))}


def check_grammar(sampling: Object) -> None:
    """Raises BadField where more than one parameter says which texts may be generated."""
    given = [name for name in GRAMMARS if name in sampling]
    if len(given) > 1:
        bad(given[1], f"an answer has one shape: give {given[0]} or {given[1]}")


def effort_template(effort: str) -> dict[str, Any]:
    """Arguments of the chat template that ask for that much reasoning, under the names that templates have for it."""
    off = {"enable_thinking": False, "thinking": False}
    return {"reasoning_effort": effort} | (off if effort == "none" else {})
