"""`read_json`: decode JSON from outside."""

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_json(data: bytes | msgspec.Raw | str, kind: type[T]) -> T:
    """Raises msgspec.DecodeError, also for too deep nesting; ValidationError for JSON of another type."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    except UnicodeError as error:  # in a field's name or a cut character; for a text msgspec mostly raises DecodeError
        raise msgspec.DecodeError(f"not UTF-8: {error.reason if hasattr(error, 'reason') else error}") from None


def read_any(data: bytes | str) -> Any:
    """Decode any JSON value; see `read_json`."""
    return read_json(data, Any)
