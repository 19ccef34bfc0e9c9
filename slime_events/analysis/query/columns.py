"""Arrow columns of an event struct, derived from its type hints: a new field of an event becomes a new column.

text, number, boolean, enum    unchanged
Array                          its length: the numbers are only in the table `tokens`
struct                         a column per field, `source.path` as `source_path`
tuple                          a list; of structs if it holds structs
dict of one type of value      a map; any other dict, list or value is JSON text
str | Any                      text unchanged, anything else as JSON text
"""

import enum
import operator
import types
from array import array
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pyarrow as pa

from schemas.arrays import Array
from schemas.doc import doc
from schemas.prompts import as_text

Get = Callable[[Any], Any]
Values = Sequence[Any]
Pack = Callable[[Values], pa.Array]
"""Converts the values of a column [n] to Arrow."""

_SCALARS: dict[Any, pa.DataType] = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}


class ArrowColumn(NamedTuple):
    """A column. Values of a million rows are read one by one, so `get` is an `attrgetter` if possible, and `pack`
    converts many values at once.
    """

    name: Annotated[str, doc("name of the column")]
    type: Annotated[pa.DataType, doc("Arrow type")]
    get: Annotated[Get, doc("returns a row's value")]
    pack: Annotated[Pack, doc("converts many values to Arrow")]


def none_only(values: Values) -> bool:
    """Return whether there are values and all are None. Comparing other values with None takes much longer."""
    return bool(values) and values[0] is None and values[-1] is None and values.count(None) == len(values)


class RowColumns:
    """Columns with a function each."""

    def __init__(self, *columns: ArrowColumn) -> None:
        self.schema: pa.Schema = pa.schema([(column.name, column.type) for column in columns])
        self.packs = [column.pack for column in columns]
        self._gets = [column.get for column in columns]

    def values(self, rows: Sequence[Any]) -> list[Values]:
        """Return the values of each column [n], for its `pack`."""
        return [list(map(get, rows)) for get in self._gets]


class StructColumns:
    """Columns of a struct's fields, in order. Columns of a nested struct have the field's name as prefix.

    All fields of a struct are read at once. Read the values soon after the structs were decoded: most of the time is
    spent waiting for memory.
    """

    def __init__(self, struct: type[msgspec.Struct]) -> None:
        hints = get_type_hints(struct)
        self._fields = [_field(name, hints[name]) for name in struct.__struct_fields__]
        columns = [column for field in self._fields for column in field.columns]
        self.schema: pa.Schema = pa.schema([(name, kind) for name, kind, _ in columns])
        self.packs = [pack for _, _, pack in columns]

    def values(self, structs: Sequence[msgspec.Struct | None]) -> list[Values]:
        """Return the values of each column [n], for its `pack`; None for a struct that is None."""
        if not structs or none_only(structs):
            return [structs] * len(self.packs)
        try:
            of_fields = list(zip(*map(msgspec.structs.astuple, structs), strict=True))  # type: ignore[arg-type]
        except TypeError:  # some are None
            nothing = (None,) * len(self._fields)
            tuples = (nothing if struct is None else msgspec.structs.astuple(struct) for struct in structs)
            of_fields = list(zip(*tuples, strict=True))
        return [column for field, some in zip(self._fields, of_fields, strict=True) for column in field.values(some)]


class _Field(NamedTuple):
    """A field of a struct: one column, or the columns of a nested struct."""

    columns: Annotated[list[tuple[str, pa.DataType, Pack]], doc("name, type and `pack` of each")]
    values: Annotated[Callable[[Values], list[Values]], doc("returns the values of each column, from the field's")]


def _field(name: str, hint: object) -> _Field:
    kind = _without_none(hint)
    if kind is Array:
        return _Field([(name, pa.int64(), scalar_pack(pa.int64()))], lambda arrays: [_lengths(arrays)])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        inner = StructColumns(kind)
        packs = inner.packs if kind is hint else list(map(_null_for_none, inner.packs))
        columns = [
            (f"{name}_{column.name}", column.type, pack) for column, pack in zip(inner.schema, packs, strict=True)
        ]
        return _Field(columns, inner.values)
    return _Field([(name, *_column(kind))], lambda values: [values])


def _lengths(arrays: Sequence[Array | None]) -> Sequence[int | None]:
    if none_only(arrays):
        return arrays  # type: ignore[return-value]
    return [None if array is None else array.n for array in arrays]


def _null_for_none(pack: Pack) -> Pack:
    """Return a `pack` whose column is null where a value is None, also if `pack` makes an empty list of it."""

    def packed(values: Values) -> pa.Array:
        column = pack(values)
        if column.null_count == values.count(None):
            return column
        places = [None if value is None else place for place, value in enumerate(values)]
        return column.take(pa.array(places, pa.int64()))

    return packed


def _column(hint: Any) -> tuple[pa.DataType, Pack]:
    """Return the type of a field's column, and its `pack`."""
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _converted(pa.string(), operator.attrgetter("_value_"))
    if hint in _SCALARS:
        return _SCALARS[hint], scalar_pack(_SCALARS[hint])
    if get_origin(hint) is not dict and str in get_args(hint) and Any in get_args(hint):
        return _converted(pa.string(), as_text)
    inner = get_args(hint)
    if get_origin(hint) is tuple:
        if inner[0] in _SCALARS:
            kind = pa.list_(_SCALARS[inner[0]])
            return kind, scalar_pack(kind)
        return _list_of_structs(StructColumns(inner[0]))
    if get_origin(hint) is dict and inner[1] in _SCALARS:
        kind = pa.map_(pa.string(), _SCALARS[inner[1]])  # a map's keys are text, and those of some events are numbers
        return _converted(kind, lambda value: [(str(key), item) for key, item in value.items()])
    return _converted(pa.string(), to_json)


def scalar(name: str, kind: pa.DataType, get: Get) -> ArrowColumn:
    """Return a column whose values Arrow accepts unchanged."""
    return ArrowColumn(name, kind, get, scalar_pack(kind))


def scalar_pack(kind: pa.DataType) -> Pack:
    """Return a `pack` of values that Arrow accepts unchanged."""
    return _integers if kind == pa.int64() else _defaults_once(kind, lambda values: pa.array(values, kind))


def _integers(values: Values) -> pa.Array:
    """Return a column of integers. An `array` takes a third of the time that Arrow takes for a list."""
    if none_only(values):
        return pa.nulls(len(values), pa.int64())
    try:
        numbers = array("q", values)
    except (TypeError, OverflowError):  # some are None, or Arrow's error is wanted
        return pa.array(values, pa.int64())
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(numbers)])


def _converted(kind: pa.DataType, change: Get) -> tuple[pa.DataType, Pack]:
    """Return `kind` and a `pack` of the changed values; None stays None."""

    def packed(values: Values) -> pa.Array:
        return pa.array([None if value is None else change(value) for value in values], kind)

    return kind, _defaults_once(kind, packed)


def _defaults_once(kind: pa.DataType, pack: Pack) -> Pack:
    """Return a `pack` that converts one value if all are None, the same text or the same empty container: most fields
    of most events have their default.

    Other values that are equal may differ in a column, as 1 and True do in JSON, or 0.0 and -0.0.
    """

    def packed(values: Values) -> pa.Array:
        if none_only(values):
            return pa.nulls(len(values), kind)
        first = values[0] if values else 0
        plain = isinstance(first, str) or (isinstance(first, dict | tuple | list) and not first)
        if plain and values[-1] == first and values.count(first) == len(values):
            return _repeated(pack(values[:1]), len(values))
        return pack(values)

    return packed


def _repeated(value: pa.Array, count: int) -> pa.Array:
    if pa.types.is_nested(value.type):  # repeating containers takes ten times as long
        return value.take(pa.array(np.zeros(count, np.int64)))
    return pa.repeat(value[0], count)


def _list_of_structs(columns: StructColumns) -> tuple[pa.DataType, Pack]:
    """Return the type and `pack` of a list column; None is an empty list."""
    kind = pa.list_(pa.struct(list(columns.schema)))

    def packed(values: Values) -> pa.Array:
        lists = [value or () for value in values]
        parts = columns.values(list(chain.from_iterable(lists)))
        arrays = [pack(part) for pack, part in zip(columns.packs, parts, strict=True)]
        inside = pa.StructArray.from_arrays(arrays, fields=list(kind.value_type))
        return pa.ListArray.from_arrays(offsets_of(lists), inside, type=kind)

    return kind, packed


def offsets_of(lists: Sequence[Sequence[Any]]) -> pa.Array:
    """Return where each of these lists begins in their concatenation, and its length, int32 [n + 1]."""
    ends = np.cumsum(np.fromiter(map(len, lists), np.int32, len(lists)), dtype=np.int32)
    return pa.array(np.concatenate((np.zeros(1, np.int32), ends)))


def to_json(value: object) -> str:
    """Return JSON text; values that JSON cannot hold become strings. Most dicts of events are empty."""
    if not value and type(value) is dict:
        return "{}"
    return msgspec.json.encode(value, enc_hook=str).decode()


def _without_none(hint: Any) -> Any:
    """Return the hint without None; a union of several other types counts as `Any`."""
    if get_origin(hint) in (Union, types.UnionType):
        some = [kind for kind in get_args(hint) if kind not in (type(None), msgspec.UnsetType)]
        return some[0] if len(some) == 1 else str | Any if str in some and Any in some else Any
    return hint
