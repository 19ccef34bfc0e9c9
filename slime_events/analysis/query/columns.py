"""Arrow columns of an event struct, derived from its type hints: a new field of an event becomes a new column.

text, number, boolean, enum    unchanged
Array                          its length: the numbers are only in the table `tokens`
struct                         a column per field, `source.path` as `source_path`
tuple                          a list; of structs if it holds structs
dict of one type of value      a map; any other dict, list or value is JSON text
str | Any                      text unchanged, anything else as JSON text
"""

import enum
import itertools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa

from schemas.arrays import Array
from schemas.doc import doc
from schemas.prompts import as_text

Get = Callable[[Any], Any]
Pack = Callable[[list[Any]], pa.Array]

_SCALARS: dict[Any, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class ArrowColumn(NamedTuple):
    """A column. Values of a million rows are read one by one, so `get` is an `attrgetter` if possible, and `pack`
    converts many values at once.
    """

    name: Annotated[str, doc("name of the column")]
    type: Annotated[pa.DataType, doc("Arrow type")]
    get: Annotated[Get, doc("returns a row's value")]
    pack: Annotated[Pack, doc("converts many values to Arrow")]

    def array(self, rows: Sequence[Any]) -> pa.Array:
        """Return the column over these rows [n]: structs, or other inputs of `get`."""
        return self.pack(list(map(self.get, rows)))


def _all_alike(values: list[Any]) -> bool:
    """Return whether all values of a field are the same text, or the same empty container: most fields of most events
    have their default.

    Other values that are equal may differ in a column, as 1 and True do in JSON.
    """
    first = values[0]
    if isinstance(first, str) or (isinstance(first, dict | tuple | list) and not first):
        return bool(values[-1] == first) and values.count(first) == len(values)
    return False


def struct_columns(struct: type[msgspec.Struct]) -> Iterator[ArrowColumn]:
    """Yield the columns of `struct`. Columns of a nested struct have the field's name as prefix."""
    hints = get_type_hints(struct)
    for name in struct.__struct_fields__:
        hint, get = _without_none(hints[name]), operator.attrgetter(name)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint is not Array:
            always = hint is hints[name]
            for inner in struct_columns(hint):
                yield _nested(name, get, inner, always=always)
        else:
            yield _column(name, hint, get)


def _nested(name: str, get: Get, inner: ArrowColumn, *, always: bool) -> ArrowColumn:
    """Return a column of a nested struct. always: the struct is never None, so its field is read at once."""
    if always and isinstance(inner.get, operator.attrgetter):
        path = cast(tuple[str], inner.get.__reduce__()[1])[0]
        return ArrowColumn(f"{name}_{inner.name}", inner.type, operator.attrgetter(f"{name}.{path}"), inner.pack)
    return ArrowColumn(f"{name}_{inner.name}", inner.type, get, _pack_nested(inner))


def _pack_nested(column: ArrowColumn) -> Pack:
    """Return a `pack` for a column of nested structs; the column is null if the struct is None."""
    get, pack, kind = column.get, column.pack, column.type

    def packed(structs: list[Any]) -> pa.Array:
        if structs.count(None) == len(structs):
            return pa.nulls(len(structs), kind)
        return pack([None if struct is None else get(struct) for struct in structs])

    return packed


def _column(name: str, hint: object, get: Get) -> ArrowColumn:
    if hint is Array:
        return _converted(name, pa.int64(), get, operator.attrgetter("n"))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _converted(name, pa.string(), get, operator.attrgetter("_value_"))
    if hint in _SCALARS:
        return scalar(name, _SCALARS[hint], get)
    if get_origin(hint) is not dict and str in get_args(hint) and Any in get_args(hint):
        return _converted(name, pa.string(), get, as_text)
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        if inner[0] in _SCALARS:
            return scalar(name, pa.list_(_SCALARS[inner[0]]), get)
        return _list_of_structs(name, inner[0], get)
    if get_origin(hint) is dict and inner[1] in _SCALARS:
        kind = pa.map_(pa.string(), _SCALARS[inner[1]])  # a map's keys are text, and those of some events are numbers
        return _converted(name, kind, get, lambda value: [(str(key), item) for key, item in value.items()])
    return _converted(name, pa.string(), get, to_json)


def scalar(name: str, kind: pa.DataType, get: Get) -> ArrowColumn:
    """Return a column whose values Arrow accepts unchanged."""
    return ArrowColumn(name, kind, get, lambda values: pa.array(values, kind))


def _list_of_structs(name: str, struct: type[msgspec.Struct], get: Get) -> ArrowColumn:
    parts = list(struct_columns(struct))
    kind = pa.list_(pa.struct([(part.name, part.type) for part in parts]))

    def pack(values: list[Any]) -> pa.Array:
        flat = [struct for value in values for struct in value or ()]
        offsets = list(itertools.accumulate((len(value or ()) for value in values), initial=0))
        inside = pa.StructArray.from_arrays([part.array(flat) for part in parts], fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inside, type=kind)

    return ArrowColumn(name, kind, get, pack)


def to_json(value: object) -> str:
    """Return JSON text; values that JSON cannot hold become strings. Most dicts of events are empty."""
    if not value and type(value) is dict:
        return "{}"
    return msgspec.json.encode(value, enc_hook=str).decode()


def _converted(name: str, kind: pa.DataType, get: Get, change: Get) -> ArrowColumn:
    """Return a column of the changed values of `get`; None stays None."""

    def packed(values: list[Any]) -> pa.Array:
        if values.count(None) == len(values):
            return pa.nulls(len(values), kind)
        if _all_alike(values):
            return pa.array([change(values[0])], kind).take(pa.array(np.zeros(len(values), np.int64)))
        return pa.array([None if value is None else change(value) for value in values], kind)

    return ArrowColumn(name, kind, get, packed)


def _without_none(hint: Any) -> Any:
    """Return the hint without None; a union of several other types counts as `Any`."""
    if get_origin(hint) in (Union, types.UnionType):
        some = [kind for kind in get_args(hint) if kind not in (type(None), msgspec.UnsetType)]
        return some[0] if len(some) == 1 else str | Any if str in some and Any in some else Any
    return hint
