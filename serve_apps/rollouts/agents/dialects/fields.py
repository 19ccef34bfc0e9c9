"""Tables of request fields, one for each API: `read_fields` enforces them and the documentation shows them."""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from schemas.doc import doc
from serve_apps.engines.checks import GRAMMARS
from serve_apps.rollouts.agents.agent_request import BadField

ANY_OBJECT = {"type": "object"}
T = TypeVar("T")
Object = Mapping[str, Any]
Check = Callable[[object, str], object]
"""Turns a value at a path into the sampling parameter. Raises BadField."""
_KINDS = {str: "a string", dict: "an object", list: "a list", bool: "true or false", int: "an integer"}


class Use(enum.StrEnum):
    """Treatment of a field."""

    WORKS = "works"
    RUNS = "the run's"
    NO_EFFECT = "no effect"
    ONE_VALUE = "takes one value"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a request."""

    use: Use
    note: Annotated[str, doc("text for the documentation, and the error message if the value is refused")] = ""
    sampling: Annotated[str, doc("SGLang's name of the sampling parameter that the field sets; empty for none")] = ""
    check: Annotated[Check | None, doc("converts the value to the sampling parameter")] = None
    only: Annotated[tuple[object, ...], doc("allowed values, if `use` is ONE_VALUE")] = ()


Fields = dict[str, Field]


def works(note: str = "") -> Field:
    return Field(Use.WORKS, note)


def sampled(name: str, check: Check, note: str = "") -> Field:
    return Field(Use.WORKS, note, name, check)


def set_by_run(name: str, check: Check) -> Field:
    """Return a field that is checked and then ignored: the trainer computes log-probs under the run's own value."""
    return Field(Use.RUNS, "", name, check)


def no_effect(note: str) -> Field:
    return Field(Use.NO_EFFECT, note)


def only(*values: object, note: str) -> Field:
    return Field(Use.ONE_VALUE, note, only=values)


def refused(why: str) -> Field:
    return Field(Use.REFUSED, why)


def bad(path: str, message: str) -> NoReturn:
    raise BadField(path, message)


def read_object(body: bytes) -> dict[str, Any]:
    """Decode a body. Raises BadField if it is not a JSON object, or if the log cannot store it."""
    try:
        value = msgspec.json.decode(body)
        msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise BadField("", f"the body is not valid JSON: {error}") from error
    return take(value, dict, "")


def read_fields(table: Fields, body: Object, path: str = "") -> dict[str, Any]:
    """Return the sampling parameters that a body sets, by SGLang's names. null counts as absent.

    Raises BadField for a field that is unknown or refused, and for a value that is not valid.
    """
    sampling: dict[str, Any] = {}
    for name, value in body.items():
        field, where = table.get(name), under(path, name)
        if value is None:
            continue
        if field is None:
            bad(where, "unknown field: this API does not have it here")
        if field.use is Use.REFUSED or (field.use is Use.ONE_VALUE and not _is_one_of(value, field.only)):
            bad(where, field.note)
        if field.check is not None:
            sampling[field.sampling] = field.check(value, where)
    return sampling


def _is_one_of(value: object, allowed: Sequence[object]) -> bool:
    """Compare as JSON values: true does not equal 1."""
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed)


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def take(value: object, kind: type[T], path: str) -> T:
    """Return the value if it has this type. Raises BadField."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        bad(path, f"must be {_KINDS[kind]}")
    return value


def get(holder: Object, name: str, kind: type[T], path: str, default: T | None = None) -> T:
    """Return a value of the object at `path`. null counts as absent; a value without a default is required."""
    value, where = holder.get(name), under(path, name)
    if value is None and default is not None:
        return default
    if value is None:
        bad(where, "required field is missing")
    return take(value, kind, where)


def maybe(holder: Object, name: str, kind: type[T]) -> T | None:
    """Return a value of the request, None if it is absent."""
    value = holder.get(name)
    return None if value is None else take(value, kind, name)


def items(values: Sequence[object], path: str) -> list[tuple[dict[str, Any], str]]:
    """Return each object of a list with its path. Raises BadField."""
    return [(take(value, dict, under(path, at)), under(path, at)) for at, value in enumerate(values)]


def under(path: str, name: str | int) -> str:
    return f"{path}.{name}" if path else str(name)


def number(low: float, high: float = math.inf, *, above: bool = False) -> Check:
    """Return a check for a number from `low` to `high`. above: `low` itself is too small."""

    def check(value: object, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            bad(path, "must be a number")
        if not low <= value <= high or (above and value == low):
            bad(path, f"must be {'above' if above else 'at least'} {low:g}{_upto(high)}, not {value:g}")
        return value

    return check


def integer(low: int, high: int = 2**31 - 1) -> Callable[[object, str], int]:
    def check(value: object, path: str) -> int:
        if not low <= take(value, int, path) <= high:
            bad(path, f"must be at least {low}{_upto(high)}, not {value}")
        return take(value, int, path)

    return check


def _upto(high: float) -> str:
    return "" if high in (math.inf, 2**31 - 1) else f" and at most {high:g}"


def flag(value: object, path: str) -> bool:
    return take(value, bool, path)


def text(value: object, path: str) -> str:
    return take(value, str, path)


def top_k(value: object, path: str) -> int:
    """Return SGLang's top_k: -1 for the whole vocabulary, which some clients write as 0."""
    return integer(-1)(value, path) or -1


def stops(value: object, path: str) -> list[str]:
    """Return stop strings from a string or a list. Refuses an empty string, which would end every answer."""
    if isinstance(value, str):
        strings = [value]
    else:
        strings = [text(stop, under(path, at)) for at, stop in enumerate(take(value, list, path))]
    if "" in strings:
        bad(path, "a stop string cannot be empty")
    return strings


def token_ids(value: object, path: str) -> list[int]:
    return [integer(0)(token, under(path, at)) for at, token in enumerate(take(value, list, path))]


RESERVED = frozenset(
    [
        "self",
        "conversation",
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
        "kwargs",
    ]
)
"""Parameters of `apply_chat_template` itself, which a request cannot set: a chat template is code."""


def template_arguments(request: Object) -> dict[str, Any]:
    """Return a request's `chat_template_kwargs`. Raises BadField for a name that is not a template's own argument."""
    arguments = get(request, "chat_template_kwargs", dict, "", {})
    for name in arguments:
        if name in RESERVED:
            bad(f"chat_template_kwargs.{name}", "not an argument of the chat template")
    return arguments


BIAS = "not supported: the trainer computes log-probs from unbiased logits"
SGLANG: Fields = {
    "top_k": set_by_run("top_k", top_k),
    "min_p": set_by_run("min_p", number(0, 1)),
    "repetition_penalty": set_by_run("repetition_penalty", number(0, 2, above=True)),
    "min_tokens": sampled("min_new_tokens", integer(0)),
    "stop_token_ids": sampled("stop_token_ids", token_ids),
    "regex": sampled("regex", text),
    "ebnf": sampled("ebnf", text),
    "ignore_eos": sampled("ignore_eos", flag),
    "chat_template_kwargs": works("passed to the chat template"),
    "skip_special_tokens": works("default: special tokens are removed from the text, unless the request has tools"),
}
"""Fields of SGLang that each API also accepts; clients send them with `extra_body`."""


def seed(value: object, path: str) -> int:
    """Return the seed cut to 63 bits, the size of SGLang's seed."""
    return integer(-(2**63), 2**63 - 1)(value, path) & (2**63 - 1)


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
