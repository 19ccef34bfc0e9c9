"""Tools, tool choice and answer format, which the APIs share under different field names."""

from collections.abc import Sequence
from typing import Any

from serve_apps.engines.checks import GRAMMARS
from serve_apps.rollouts.agents.dialects.fields import Object, bad, get, take, to_json, under

ANY_OBJECT = {"type": "object"}


def function(holder: Object, path: str, parameters: str = "parameters") -> dict[str, Any]:
    """Return a tool in the form of chat templates. parameters: field of `holder` with the JSON schema of arguments."""
    schema = get(holder, parameters, dict, path, ANY_OBJECT | {"properties": {}})
    signature: dict[str, Any] = {"name": _name(holder, path)}
    if description := get(holder, "description", str, path, ""):
        signature["description"] = description
    signature["parameters"] = schema
    if get(holder, "strict", bool, path, False):
        signature["strict"] = True
    return {"type": "function", "function": signature}


def _name(holder: Object, path: str) -> str:
    return get(holder, "name", str, path) or bad(under(path, "name"), "the name of a tool cannot be empty")


def check_choice(choice: str, tools: Sequence[Object], path: str) -> str:
    """Return the choice. Raises BadField if the request has no tool for it."""
    if choice in ("required", "auto", "none"):
        return choice if tools or choice != "required" else bad(path, "a tool call is required, but tools is empty")
    if not any(tool["function"]["name"] == choice for tool in tools):
        bad(path, f"no tool of this request is named {choice}")
    return choice


def openai_choice(value: object, tools: Sequence[Object], path: str = "tool_choice") -> str:
    """Read the tool choice of OpenAI's two APIs: a string, or an object with a function. Raises BadField."""
    if value is None:
        return "auto"
    if isinstance(value, str):
        if value not in ("auto", "none", "required"):
            bad(path, "must be auto, none, required or a function")
        return check_choice(value, tools, path)
    choice = take(value, dict, path)
    if choice.get("type") != "function":
        bad(under(path, "type"), "must be function")
    holder, where = (choice["function"], under(path, "function")) if "function" in choice else (choice, path)
    name = get(take(holder, dict, where), "name", str, where)
    if not any(tool["function"]["name"] == name for tool in tools):
        bad(under(where, "name"), f"no tool of this request is named {name}")
    return name


def schema_sampling(schema: object, path: str) -> dict[str, str]:
    """Return the sampling parameters that constrain an answer to a JSON schema."""
    return {"json_schema": to_json(take(schema, dict, path))}


def check_grammar(sampling: Object) -> None:
    """Raise BadField if more than one parameter constrains the text."""
    grammars = [name for name in GRAMMARS if name in sampling]
    if len(grammars) > 1:
        bad(grammars[1], f"set {grammars[0]} or {grammars[1]}, not both: an answer follows one grammar")


def effort_template(effort: str) -> dict[str, Any]:
    """Return the chat template's arguments for a reasoning effort, under each name that templates use."""
    off = {"enable_thinking": False, "thinking": False}
    return {"reasoning_effort": effort} | (off if effort == "none" else {})
