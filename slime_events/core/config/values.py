"""`ValueType`: the type of a setting, and the conversion of command line words to it.

Types are read from our structs and from annotations in the source of SGLang and Megatron, so that their flags are
checked and converted like ours.
"""

import ast
import enum
import json
import math
import re
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from schemas.doc import doc
from schemas.errors import InvalidValue


class Kind(enum.Enum):
    """A kind of value: words in a message, placeholder in a usage, Python type. A word is tried in this order."""

    BOOL = ("true or false", "", bool)
    INT = ("a whole number", "N", int)
    FLOAT = ("a number", "X", float)
    JSON = ("a JSON object", "JSON", dict)
    STR = ("text", "TEXT", str)

    def __init__(self, words: str, placeholder: str, type_: type) -> None:
        self.words, self.placeholder, self.type = words, placeholder, type_


_KINDS: dict[Any, Kind] = {kind.type: kind for kind in Kind}
_KINDS_BY_NAME = {kind.type.__name__: kind for kind in Kind} | {"Dict": Kind.JSON}


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of a setting."""

    kinds: Annotated[tuple[Kind, ...], doc("valid kinds of a single value")]
    scalar: Annotated[bool, doc("a single value is valid")] = True
    many: Annotated[bool, doc("a list of values is valid")] = False
    choices: Annotated[tuple[str | int, ...], doc("valid values; empty: all values of `kinds`")] = ()

    @property
    def switch(self) -> bool:
        """Whether a flag of this type takes no word: the flag itself sets the value."""
        return self.kinds == (Kind.BOOL,) and not self.many

    def __str__(self) -> str:
        if self.choices:
            single = " | ".join(str(choice) for choice in self.choices)
        else:
            single = " or ".join(kind.words for kind in self.kinds)
        return f"a list: {single}" if self.many and not self.scalar else single


def merged(parts: Sequence[ValueType]) -> ValueType:
    """Return the union of types."""
    kinds = tuple(kind for kind in Kind if any(kind in part.kinds for part in parts))
    choices = tuple(dict.fromkeys(choice for part in parts for choice in part.choices))
    return ValueType(kinds, any(p.scalar for p in parts), any(p.many for p in parts), choices)


def of_annotation(hint: object) -> ValueType:
    """Return the type of a field of our own structs."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return of_annotation(inner[0])
    if origin in (typing.Union, types.UnionType):
        return merged([of_annotation(part) for part in inner if part is not type(None)])
    if origin is Literal:
        return _one_of(inner)
    if origin is list:
        return ValueType(of_annotation(inner[0]).kinds, scalar=False, many=True)
    return ValueType((_KINDS[origin or hint],))


def of_source(node: ast.expr) -> ValueType | None:
    """Return the type that an annotation in source code means; None if a command line cannot give such a value."""
    if isinstance(node, ast.Name):
        return ValueType((_KINDS_BY_NAME[node.id],)) if node.id in _KINDS_BY_NAME else None
    if isinstance(node, ast.BinOp):
        return _union([node.left, node.right])
    if not isinstance(node, ast.Subscript):
        return None
    head = ast.unparse(node.value).rpartition(".")[2]
    inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    if head in ("Optional", "Union"):
        return _union(inner)
    if head in ("A", "Annotated"):
        return of_source(inner[0])
    if head == "Literal":
        values = [constant.value for constant in inner if isinstance(constant, ast.Constant)]
        return _one_of([value for value in values if isinstance(value, str | int)])
    if head in ("List", "list", "Tuple", "tuple", "set", "Set"):
        part = of_source(inner[0])
        return part and ValueType(part.kinds, scalar=False, many=True, choices=part.choices)
    return ValueType((Kind.JSON,)) if head in ("Dict", "dict") else None


def _one_of(choices: Sequence[str | int]) -> ValueType:
    return merged(
        [ValueType((Kind.STR if isinstance(choice, str) else Kind.INT,), choices=(choice,)) for choice in choices]
    )


def _union(nodes: list[ast.expr]) -> ValueType | None:
    parts = [part for part in map(of_source, nodes) if part is not None]
    return merged(parts) if parts else None


def layer_pattern(text: str) -> list[int]:
    """Return the numbers in Megatron's notation for layers, such as `[0]*3+[1]*58`; empty if it is not that."""
    parts = [re.fullmatch(r"\(*\[(\d+(?:,\d+)*)\](?:\*(\d+))?\)*", part) for part in text.replace(" ", "").split("+")]
    if not all(parts):
        return []
    return [int(number) for part in parts if part for number in part[1].split(",") * int(part[2] or 1)]


def parse_words(flag: str, words: Sequence[str], expected: ValueType) -> Any:
    """Return the value of a flag's words. Raises InvalidValue, with the flag, the word and the type."""
    values = [_parse_word(flag, word, expected) for word in words]
    return values if expected.many and (len(values) > 1 or not expected.scalar) else values[0]


def _parse_word(flag: str, word: str, expected: ValueType) -> Any:
    for kind in expected.kinds:
        try:
            value = _read(kind, word)
        except ValueError:
            continue
        if expected.choices and value not in expected.choices:
            continue
        return value
    raise InvalidValue(f"{flag} is {word!r}: it must be {expected}.")


def _read(kind: Kind, word: str) -> Any:
    """Return the value. Raises ValueError if the word does not have this kind."""
    read: Callable[[str], Any] = json.loads if kind in (Kind.BOOL, Kind.JSON) else kind.type
    value = read(word.lower() if kind is Kind.BOOL else word)
    if (kind is Kind.FLOAT and not math.isfinite(value)) or type(value) is not kind.type:
        raise ValueError(word)
    return value


def fits(value: object, expected: ValueType) -> bool:
    """Return whether a typed value (from TOML) has the expected type."""
    if isinstance(value, list):
        single = ValueType(expected.kinds, choices=expected.choices)
        return expected.many and all(fits(item, single) for item in value)
    if not expected.scalar or (expected.choices and value not in expected.choices):
        return False
    kind = _KINDS.get(type(value))
    return kind in expected.kinds or (kind is Kind.INT and Kind.FLOAT in expected.kinds)
