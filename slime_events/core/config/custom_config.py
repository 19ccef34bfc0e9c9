"""`read_yaml`: the YAML file of `--custom-config-path`, whose keys are attributes of `args` in a user's functions."""

from pathlib import Path
from typing import Any

from schemas.errors import InvalidValue

NULL = "is null: leave it out, and read it with getattr(args, name, None)"


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """Return a YAML mapping of texts to JSON values or None. Raises InvalidValue, which names flag and file."""
    from slime_events.core.config.yaml_text import parse_yaml  # slow: imported only if there is such a file

    try:
        values = parse_yaml(Path(path).read_text(encoding="utf-8"), f"{flag} {path}")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"{flag} {path} cannot be read: {error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InvalidValue(f"{flag} {path} holds {type(values).__name__}: it must have `name: value` lines.")
    for name, value in values.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidValue(f"{flag} {path}: {name!r} cannot be a name on args: use letters, digits and _.")
        if value is not None and (problem := _problem(value)):
            raise InvalidValue(f"{flag} {path}: {name} {problem}.")
    return values


def _problem(value: object) -> str:
    """Return why a value cannot be recorded; empty if it can."""
    if isinstance(value, dict):
        keys = next((f"has the key {key!r}, which is not text" for key in value if not isinstance(key, str)), "")
        return keys or next(filter(None, map(_problem, value.values())), "")
    if isinstance(value, list):
        return next(filter(None, map(_problem, value)), "")
    if value is None:
        return NULL
    if isinstance(value, str | bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return ""
    return f"is {type(value).__name__} {value}, which is not a JSON value"
