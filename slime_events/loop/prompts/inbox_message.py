"""`read_message`: what a producer has sent, and every field of it that is wrong."""

import re
from typing import TypeVar

import msgspec

from schemas.inbox import FieldError
from storage.log import MAX_BATCH

WHOLE = "message"
"""In place of a field, where all of a message is wrong."""
ItemT = TypeVar("ItemT")
_NAMED = re.compile(r"field `(\w+)`")


class WrongField(Exception):
    """What is wrong with an item, and in which of its fields. No field: nothing is, and it is too early."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field, self.message = field, message


def read_message(data: bytes, kind: type[ItemT]) -> tuple[list[tuple[int, ItemT]], list[FieldError]]:
    """The items of a message by index, and its errors by index and field."""
    try:
        many = data.lstrip()[:1] == b"["
        raw = msgspec.json.decode(data, type=list[msgspec.Raw]) if many else [msgspec.Raw(data)]
    except msgspec.DecodeError as error:
        return [], [FieldError(0, WHOLE, f"not JSON: {error}")]
    if len(raw) > MAX_BATCH:
        most = f"it has {len(raw):,} items, {MAX_BATCH:,} are the most: send several"
        return [], [FieldError(MAX_BATCH, WHOLE, most)]
    items: list[tuple[int, ItemT]] = []
    errors: list[FieldError] = []
    for index, item in enumerate(raw):
        try:
            items.append((index, msgspec.json.decode(item, type=kind)))
        except msgspec.DecodeError as error:
            errors.append(field_error(index, error, "prompt"))
    return items, errors


def field_error(index: int, error: msgspec.DecodeError, whole: str) -> FieldError:
    """Where a message is wrong. whole: the field where what is JSON is of another type as a whole."""
    if not isinstance(error, msgspec.ValidationError):
        return FieldError(index, WHOLE, f"not JSON: {error}")
    reason, _, path = str(error).partition(" - at `$")
    named = _NAMED.search(reason)  # a field that is missing or unknown stands in the words alone
    return FieldError(index, path.rstrip("`").lstrip(".") or (named[1] if named else whole), reason)
