"""`read_json`: JSON that somebody outside has written."""

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_json(data: bytes | msgspec.Raw | str, kind: type[T]) -> T:
    """Raises msgspec.DecodeError, also where it is nested more deeply than it can be read; ValidationError where it is
    JSON of another kind.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    except UnicodeError as error:  # a name of a field, or half a character; of a text msgspec mostly says it itself
        raise msgspec.DecodeError(f"not UTF-8: {error.reason if hasattr(error, 'reason') else error}") from None


def read_any(data: bytes | str) -> Any:
    """The same for JSON of every kind."""
    return read_json(data, Any)
