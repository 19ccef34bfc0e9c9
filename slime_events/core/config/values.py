"""`ValueType`: the type of a setting, and the conversion of command line words to it.

It is read from our own structs and from annotations in other packages' source, so that flags of SGLang and Megatron
are converted and refused like our own.
"""

import ast
import enum
import json
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from schemas.errors import InvalidValue


class Kind(enum.IntEnum):
    """A kind of value, in the order in which a word is tried as each of them."""

    BOOL = 0
    INT = 1
    FLOAT = 2
    JSON = 3
    STR = 4


KIND_NAMES = {
    Kind.BOOL: "true or false",
    Kind.INT: "a whole number",
    Kind.FLOAT: "a number",
    Kind.JSON: "a JSON object",
    Kind.STR: "text",
}
_PLAIN = {bool: Kind.BOOL, int: Kind.INT, float: Kind.FLOAT, str: Kind.STR, dict: Kind.JSON}
_PLAIN_NAMES = {"bool": Kind.BOOL, "int": Kind.INT, "float": Kind.FLOAT, "str": Kind.STR}


@dataclass(frozen=True, slots=True)
class ValueType:
    """kinds: of one value. choices: the allowed values, if limited. scalar, many: one value, a list of values."""

    kinds: tuple[Kind, ...]
    scalar: bool = True
    many: bool = False
    choices: tuple[str | int, ...] = ()

    @property
    def switch(self) -> bool:
        """Whether a flag of this type takes no word: its presence is the value."""
        return self.kinds == (Kind.BOOL,) and not self.many

    def __str__(self) -> str:
        if self.choices:
            one = " | ".join(str(choice) for choice in self.choices)
        else:
            one = " or ".join(KIND_NAMES[kind] for kind in self.kinds)
        return f"a list: {one}" if self.many and not self.scalar else one


def merged(parts: Sequence[ValueType]) -> ValueType:
    """The union of several types."""
    kinds = tuple(sorted({kind for part in parts for kind in part.kinds}))
    choices = tuple(dict.fromkeys(choice for part in parts for choice in part.choices))
    return ValueType(kinds, any(p.scalar for p in parts), any(p.many for p in parts), choices)


def of_annotation(hint: Any) -> ValueType:
    """The type of one of our own fields."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return of_annotation(inner[0])
    if origin in (typing.Union, types.UnionType):
        return merged([of_annotation(one) for one in inner if one is not type(None)])
    if origin is Literal:
        return ValueType(tuple({Kind.STR if isinstance(one, str) else Kind.INT for one in inner}), choices=inner)
    if origin is list:
        return ValueType(of_annotation(inner[0]).kinds, scalar=False, many=True)
    return ValueType((_PLAIN[origin or hint],))


def of_source(node: ast.expr) -> ValueType | None:
    """The type of an annotation in source; None where no command line can give such a value."""
    if isinstance(node, ast.Name):
        if node.id in ("dict", "Dict"):
            return ValueType((Kind.JSON,))
        return ValueType((_PLAIN_NAMES[node.id],)) if node.id in _PLAIN_NAMES else None
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
        choices = tuple(
            one.value for one in inner if isinstance(one, ast.Constant) and isinstance(one.value, str | int)
        )
        return ValueType(tuple({Kind.STR if isinstance(one, str) else Kind.INT for one in choices}), choices=choices)
    if head in ("List", "list", "Tuple", "tuple", "set", "Set"):
        part = of_source(inner[0])
        return part and ValueType(part.kinds, scalar=False, many=True, choices=part.choices)
    return ValueType((Kind.JSON,)) if head in ("Dict", "dict") else None


def _union(nodes: list[ast.expr]) -> ValueType | None:
    parts = [part for part in map(of_source, nodes) if part is not None]
    return merged(parts) if parts else None


def parse_words(flag: str, words: Sequence[str], expected: ValueType) -> Any:
    """The value of `words`; InvalidValue names the flag, the word and the expected type."""
    values = [_parse_word(flag, word, expected) for word in words]
    if expected.many and (len(values) > 1 or not expected.scalar):
        return values
    if len(values) > 1:
        raise InvalidValue(f"{flag} takes one value, not {len(values)}: {' '.join(words)}")
    return values[0]


def _parse_word(flag: str, word: str, expected: ValueType) -> Any:
    for kind in expected.kinds:
        try:
            value = _READERS[kind](word)
        except ValueError:
            continue
        if expected.choices and value not in expected.choices:
            continue
        return value
    raise InvalidValue(f"{flag} is {word!r}, and should be {expected}.")


def _bool(word: str) -> bool:
    return {"true": True, "false": False}[word.lower()] if word.lower() in ("true", "false") else _refuse(word)


def _float(word: str) -> float:
    value = float(word)
    return value if math.isfinite(value) else _refuse(word)


def _json(word: str) -> dict[str, Any]:
    value = json.loads(word)
    return value if isinstance(value, dict) else _refuse(word)


def _refuse(word: str) -> typing.NoReturn:
    raise ValueError(word)


_READERS: dict[Kind, typing.Callable[[str], Any]] = {
    Kind.BOOL: _bool,
    Kind.INT: int,
    Kind.FLOAT: _float,
    Kind.JSON: _json,
    Kind.STR: str,
}


def fits(value: Any, expected: ValueType) -> bool:
    """Whether a typed value (from TOML) is of the expected type."""
    if isinstance(value, list):
        single = ValueType(expected.kinds, choices=expected.choices)
        return expected.many and all(fits(one, single) for one in value)
    if not expected.scalar or (expected.choices and value not in expected.choices):
        return False
    kinds = {bool: {Kind.BOOL}, int: {Kind.INT, Kind.FLOAT}, float: {Kind.FLOAT}, str: {Kind.STR}, dict: {Kind.JSON}}
    return bool(kinds.get(type(value), set()) & set(expected.kinds))
