"""`read_message`: the items of a producer's message, and all their wrong fields."""

import contextlib
import re
from typing import Any, TypeVar

import msgspec

from schemas.inbox import FieldError
from schemas.outside_json import read_json
from slime_events.loop.prompts.json_line import without_mark
from slime_events.loop.prompts.json_value import BadValue, is_stored, json_value, label_value
from storage.log import MAX_BATCH

WHOLE = "message"
"""Used instead of a field if a whole message is wrong."""
LABEL = "label"
ItemT = TypeVar("ItemT")
_NAMED = re.compile(r"field `(\w+)`")


class WrongField(Exception):
    """An error in a field of an item. If the field is empty, the item is valid but cannot be taken now."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field, self.message = field, message


def read_message(data: bytes, kind: type[ItemT]) -> tuple[list[tuple[int, ItemT]], list[FieldError]]:
    """Return the items of a message by index, and its errors by index and field.

    A valid message is decoded once. A wrong one is decoded item by item, so that each error has its index.
    """
    data = without_mark(data)
    many = data.lstrip()[:1] == b"["
    if many:
        with contextlib.suppress(msgspec.DecodeError):
            valid = read_json(data, list[kind])  # type: ignore[valid-type]
            if len(valid) <= MAX_BATCH:
                return [(index, _with_label(item)) for index, item in enumerate(valid)], []
    try:
        raw = read_json(data, list[msgspec.Raw]) if many else [msgspec.Raw(data)]
    except msgspec.DecodeError as error:
        return [], [FieldError(0, WHOLE, f"not JSON: {error}")]
    if len(raw) > MAX_BATCH:
        most = f"it has {len(raw):,} items, {MAX_BATCH:,} are the most: send several"
        return [], [FieldError(MAX_BATCH, WHOLE, most)]
    items: list[tuple[int, ItemT]] = []
    errors: list[FieldError] = []
    for index, item in enumerate(raw):
        try:
            items.append((index, _with_label(read_json(item, kind))))
        except msgspec.DecodeError as error:
            errors.append(field_error(index, error, "prompt"))
    return items, errors


def as_carried(fields: dict[str, Any]) -> dict[str, Any]:
    """Return JSON fields as the log stores them: see `label_value`, `json_value`. Raises WrongField."""
    if _is_carried(fields):
        return fields
    try:
        return {name: (label_value if name == LABEL else json_value)(value, name) for name, value in fields.items()}
    except BadValue as error:
        raise WrongField(error.field, error.message) from None


def _is_carried(value: object) -> bool:
    try:
        msgspec.msgpack.encode(value)
    except (OverflowError, RecursionError):
        return False
    return True


def _with_label(item: ItemT) -> ItemT:
    """Return the item, with a label that is an integer beyond 64 bits as text."""
    label = getattr(item, LABEL, None)
    if not isinstance(label, int) or is_stored(label):
        return item
    return msgspec.structs.replace(item, label=label_value(label, LABEL))  # type: ignore[type-var]


def field_error(index: int, error: msgspec.DecodeError, whole: str) -> FieldError:
    """Return the error of a message. whole: the field to name if a JSON value has the wrong type as a whole."""
    if not isinstance(error, msgspec.ValidationError):
        return FieldError(index, WHOLE, f"not JSON: {error}")
    reason, _, path = str(error).partition(" - at `$")
    named = _NAMED.search(reason)  # only the message names a missing or unknown field
    return FieldError(index, path.rstrip("`").lstrip(".") or (named[1] if named else whole), reason)
