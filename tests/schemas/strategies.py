"""Hypothesis strategies for every event, read off the structs: a new event is tested as soon as it exists."""

from __future__ import annotations

import enum
import types
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

from schemas.envelope import Envelope, enclose
from schemas.event import Event
from schemas.registry import EVENT_CLASSES

INTS = st.integers(-(2**63), 2**64 - 1)
FLOATS = st.floats(allow_nan=False)
TEXT = st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: FLOATS,
    str: TEXT,
    bool: st.booleans(),
    bytes: st.binary(max_size=40),
    type(None): st.none(),
    msgspec.UnsetType: st.just(msgspec.UNSET),
    Any: JSON,
}


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type annotation as they occur in the schemas."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return st.one_of([of_type(part) for part in inner])
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is tuple and len(inner) == 2 and inner[1] is ...:
        return st.lists(of_type(inner[0]), max_size=4).map(tuple)
    if origin is list:
        return st.lists(of_type(inner[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(of_type(inner[0]), of_type(inner[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return struct(hint)
    raise NotImplementedError(f"no strategy for {hint!r}")


@cache  # to make a strategy takes longer than to draw from it
def struct(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Instances of a struct; fields with a default are sometimes left out."""
    hints = get_type_hints(cls)
    required = {f.name: of_type(hints[f.name]) for f in msgspec.structs.fields(cls) if f.required}
    optional = {f.name: of_type(hints[f.name]) for f in msgspec.structs.fields(cls) if not f.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: cls(**values))


EVENTS: st.SearchStrategy[Event] = st.sampled_from(EVENT_CLASSES).flatmap(struct)


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    """Any event in any envelope."""
    return enclose(
        draw(TEXT),
        draw(EVENTS),
        at=draw(st.integers(0, 2**63 - 1)),
        producer=draw(TEXT),
        cause=draw(st.none() | TEXT),
        traceparent=draw(st.none() | TEXT),
    )
