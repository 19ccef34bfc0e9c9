"""Arrow columns of an event struct, derived from its type hints: a new field of an event is a new column.

text, number, boolean, enum    as they are
Array                          how many numbers it has: the numbers themselves are only in the table `tokens`
struct                         a column for each of its fields, `source.path` as `source_path`
tuple                          a list, of structs where it holds structs
dict of one type of value      a map; any other dict, list or value is JSON text
str | Any                      a text as it is, anything else as JSON text
"""

import enum
import itertools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa

from schemas.arrays import Array
from schemas.prompts import as_text

Get = Callable[[Any], Any]
Pack = Callable[[list[Any]], pa.Array]

_SCALARS: dict[Any, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class ArrowColumn(NamedTuple):
    """One column. get: its value in a row; pack: many values to Arrow. A million rows are `get` of: it is an
    `attrgetter` wherever it can be, and `pack` does the rest for many at once.
    """

    name: str
    type: pa.DataType
    get: Get
    pack: Pack

    def array(self, rows: Sequence[Any]) -> pa.Array:
        """The column over these rows [n]: structs, or whatever `get` takes."""
        return self.pack(list(map(self.get, rows)))


def struct_columns(struct: type[msgspec.Struct]) -> Iterator[ArrowColumn]:
    """The columns of `struct`; those of a struct in it have its field's name before theirs."""
    hints = get_type_hints(struct)
    for name in struct.__struct_fields__:
        hint, get = _without_none(hints[name]), operator.attrgetter(name)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint is not Array:
            for inner in struct_columns(hint):
                yield ArrowColumn(f"{name}_{inner.name}", inner.type, get, _inside(inner))
        else:
            yield _column(name, hint, get)


def _inside(column: ArrowColumn) -> Pack:
    """Packs a column of structs, some of which are None: then it is null."""
    get, pack, kind = column.get, column.pack, column.type

    def packed(structs: list[Any]) -> pa.Array:
        if structs.count(None) == len(structs):
            return pa.nulls(len(structs), kind)
        return pack([None if one is None else get(one) for one in structs])

    return packed


def _column(name: str, hint: Any, get: Get) -> ArrowColumn:
    if hint is Array:
        return _changed(name, pa.int64(), get, operator.attrgetter("n"))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _changed(name, pa.string(), get, operator.attrgetter("_value_"))
    if hint in _SCALARS:
        return scalar(name, _SCALARS[hint], get)
    if get_origin(hint) is not dict and str in get_args(hint) and Any in get_args(hint):
        return _changed(name, pa.string(), get, as_text)
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        if inner[0] in _SCALARS:
            return scalar(name, pa.list_(_SCALARS[inner[0]]), get)
        return _list_of_structs(name, inner[0], get)
    if get_origin(hint) is dict and inner[1] in _SCALARS:
        kind = pa.map_(pa.string(), _SCALARS[inner[1]])  # a map's keys are text, and those of some events are numbers
        return _changed(name, kind, get, lambda value: [(str(key), one) for key, one in value.items()])
    return _changed(name, pa.string(), get, to_json)


def scalar(name: str, kind: pa.DataType, get: Get) -> ArrowColumn:
    """A column whose values Arrow takes as they are."""
    return ArrowColumn(name, kind, get, lambda values: pa.array(values, kind))


def _list_of_structs(name: str, struct: type[msgspec.Struct], get: Get) -> ArrowColumn:
    parts = list(struct_columns(struct))
    kind = pa.list_(pa.struct([(part.name, part.type) for part in parts]))

    def pack(values: list[Any]) -> pa.Array:
        flat = [one for value in values for one in value or ()]
        offsets = list(itertools.accumulate((len(value or ()) for value in values), initial=0))
        inside = pa.StructArray.from_arrays([part.array(flat) for part in parts], fields=list(kind.value_type))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inside, type=kind)

    return ArrowColumn(name, kind, get, pack)


def to_json(value: Any) -> str:
    """JSON text; what has no place in JSON as its own text. Most dicts of events are empty."""
    if not value and type(value) is dict:
        return "{}"
    return msgspec.json.encode(value, enc_hook=str).decode()


def _changed(name: str, kind: pa.DataType, get: Get, change: Get) -> ArrowColumn:
    """A column of `change` of what `get` gives; None stays None."""

    def packed(values: list[Any]) -> pa.Array:
        if values.count(None) == len(values):
            return pa.nulls(len(values), kind)
        return pa.array([None if value is None else change(value) for value in values], kind)

    return ArrowColumn(name, kind, get, packed)


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        some = [one for one in get_args(hint) if one not in (type(None), msgspec.UnsetType)]
        return some[0] if len(some) == 1 else str | Any if str in some and Any in some else Any
    return hint
