"""What each field of a request comes to: one table a dialect, which `read` obeys and the documentation shows."""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import msgspec

from serve_apps.agents.asked import BadField

T = TypeVar("T")
Object = Mapping[str, Any]
Check = Callable[[Any, str], Any]
"""A value and its path to what it means. Raises BadField."""
_KINDS = {str: "a text", dict: "an object", list: "a list", bool: "true or false", int: "a whole number"}


class Use(enum.StrEnum):
    """What giving a field comes to."""

    WORKS = "works"
    RUNS = "the run's"
    NO_EFFECT = "no effect"
    ONE_VALUE = "takes one value"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Field:
    """note: what there is to say of it. sampling: SGLang's name of what it sets. check: of that value. only: what it
    may be, where it takes one value.
    """

    use: Use
    note: str = ""
    sampling: str = ""
    check: Check | None = None
    only: tuple[Any, ...] = ()


Fields = dict[str, Field]


def works(note: str = "") -> Field:
    return Field(Use.WORKS, note)


def sampled(name: str, check: Check, note: str = "") -> Field:
    return Field(Use.WORKS, note, name, check)


def runs(name: str, check: Check) -> Field:
    """How tokens are drawn is the run's to say: the trainer takes their log-probs so."""
    return Field(Use.RUNS, "", name, check)


def no_effect(note: str) -> Field:
    return Field(Use.NO_EFFECT, note)


def only(*values: Any, note: str) -> Field:
    return Field(Use.ONE_VALUE, note, only=values)


def refused(why: str) -> Field:
    return Field(Use.REFUSED, why)


def bad(path: str, message: str) -> NoReturn:
    raise BadField(path, message)


def read_object(body: bytes) -> dict[str, Any]:
    """The body. Raises BadField for what is no JSON object, or could not be kept in the log."""
    try:
        value = msgspec.json.decode(body)
        msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise BadField("", f"the body is not JSON as it is read here: {error}") from error
    return take(value, dict, "")


def read_fields(table: Fields, body: Object, path: str = "") -> dict[str, Any]:
    """The sampling that the body asks for, by SGLang's names. null counts as not given. Raises BadField for a field
    that is unknown or refused, and for a value that cannot be.
    """
    sampling: dict[str, Any] = {}
    for name, value in body.items():
        field, where = table.get(name), under(path, name)
        if value is None:
            continue
        if field is None:
            bad(where, "this API has no such field here")
        if field.use is Use.REFUSED or (field.use is Use.ONE_VALUE and not _is_one_of(value, field.only)):
            bad(where, field.note)
        if field.check is not None:
            sampling[field.sampling] = field.check(value, where)
    return sampling


def _is_one_of(value: Any, allowed: Sequence[Any]) -> bool:
    """true is not 1 here."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def take(value: Any, kind: type[T], path: str) -> T:
    """The value, of that type. Raises BadField."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        bad(path, f"this has to be {_KINDS[kind]}")
    return value


def get(holder: Object, name: str, kind: type[T], path: str, default: T | None = None) -> T:
    """A value of an object at `path`. Without a default it has to be there; null counts as not given."""
    value, where = holder.get(name), under(path, name)
    if value is None and default is not None:
        return default
    if value is None:
        bad(where, "this is missing")
    return take(value, kind, where)


def maybe(holder: Object, name: str, kind: type[T]) -> T | None:
    """A value of the request; None where it is not given."""
    value = holder.get(name)
    return None if value is None else take(value, kind, name)


def items(values: Sequence[Any], path: str) -> list[tuple[dict[str, Any], str]]:
    """The objects of a list, each with its path. Raises BadField."""
    return [(take(value, dict, under(path, at)), under(path, at)) for at, value in enumerate(values)]


def under(path: str, name: str | int) -> str:
    return f"{path}.{name}" if path else str(name)


def number(low: float, high: float = math.inf, *, above: bool = False) -> Check:
    """above: low itself is too little."""

    def check(value: Any, path: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            bad(path, "this has to be a number")
        if not low <= value <= high or (above and value == low):
            bad(path, f"this has to be {'above' if above else 'at least'} {low:g}{_upto(high)}, not {value:g}")
        return value

    return check


def integer(low: int, high: int = 2**31 - 1) -> Check:
    def check(value: Any, path: str) -> int:
        if not low <= take(value, int, path) <= high:
            bad(path, f"this has to be at least {low}{_upto(high)}, not {value}")
        return int(value)

    return check


def _upto(high: float) -> str:
    return "" if high in (math.inf, 2**31 - 1) else f" and at most {high:g}"


def flag(value: Any, path: str) -> bool:
    return take(value, bool, path)


def text(value: Any, path: str) -> str:
    return take(value, str, path)


def top_k(value: Any, path: str) -> int:
    """SGLang's: -1 for the whole vocabulary, for which some clients say 0."""
    return int(integer(-1)(value, path)) or -1


def stops(value: Any, path: str) -> list[str]:
    """Stop strings: one, or a list. An empty one would end every answer before it begins."""
    found = (
        [value]
        if isinstance(value, str)
        else [text(one, under(path, at)) for at, one in enumerate(take(value, list, path))]
    )
    if "" in found:
        bad(path, "a stop string cannot be empty")
    return found


def token_ids(value: Any, path: str) -> list[int]:
    return [int(integer(0)(one, under(path, at))) for at, one in enumerate(take(value, list, path))]


BIAS = "tokens are drawn as the model gives them: the trainer takes their log-probs so"
SGLANG: Fields = {
    "top_k": runs("top_k", top_k),
    "min_p": runs("min_p", number(0, 1)),
    "repetition_penalty": runs("repetition_penalty", number(0, 2, above=True)),
    "min_tokens": sampled("min_new_tokens", integer(0)),
    "stop_token_ids": sampled("stop_token_ids", token_ids),
    "regex": sampled("regex", text),
    "ebnf": sampled("ebnf", text),
    "ignore_eos": sampled("ignore_eos", flag),
    "chat_template_kwargs": works("given to the chat template"),
    "skip_special_tokens": works("special tokens are left out of the text; where tools are given they stay"),
}
"""What SGLang takes beside the fields of an API, as clients give it by `extra_body`."""


def seed(value: Any, path: str) -> int:
    """SGLang's has 63 bits."""
    return int(integer(-(2**63), 2**63 - 1)(value, path)) & (2**63 - 1)
