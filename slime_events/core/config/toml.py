"""Read and write settings as TOML: a table per component, whose keys are the fields' names."""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from schemas.errors import ConfigError, InvalidValue, UnknownFlag
from slime_events.core.config import tables
from slime_events.core.config.fields import COMPONENTS, NOTHING_REGISTERED, PASS_THROUGH, Registered, settings_fields
from slime_events.core.config.installed import megatron_fields, sglang_fields
from slime_events.core.config.nearest import did_you_mean
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.values import ValueType, fits

_ALL = ", ".join(COMPONENTS)
Values = dict[str, dict[str, Any]]
"""Component to field to value: an incomplete set of settings."""


def to_toml(settings: TrainSettings) -> str:
    """Return the settings as TOML for `read_toml`, without fields that are None: TOML has no null."""
    tables: list[str] = []
    for component, values in msgspec.to_builtins(settings).items():
        inner = {name: values.pop(name) for where, name in PASS_THROUGH if where == component}
        tables.append(_table(component, values))
        tables.extend(_table(f"{component}.{name}", table) for name, table in inner.items() if table)
    return "\n".join(tables)


def settings_from(values: Mapping[str, Mapping[str, Any]]) -> TrainSettings:
    """Return settings with `values` over the defaults. Raises InvalidValue if a value has the wrong type."""
    try:
        return msgspec.convert(values, TrainSettings)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"A setting has an invalid value: {error}") from error


def read_toml(text: str, source: str, registered: Registered = NOTHING_REGISTERED) -> Values:
    """Return the values of a TOML text, with names and types checked; errors have file and line."""
    try:
        values: Values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{source} is not TOML: {error}") from error
    types = {(field.component, field.name): registered.type_of(field) for field in settings_fields()}
    for component, table in values.items():
        if component not in COMPONENTS or not isinstance(table, dict):
            where = f"{source}, line {_line(text, None, component)}"
            hint = _right_table(component) or did_you_mean(component, COMPONENTS) or f" The tables are {_ALL}."
            raise UnknownFlag(f"{where}: there is no table [{component}].{hint}")
        for name, value in table.items():
            is_right = (component, name) in types and (component, name) not in PASS_THROUGH
            if is_right and fits(value, types[component, name]):
                continue  # there are hundreds: find the line number only for errors
            where = f"{source}, line {_line(text, component, name)}"
            if (component, name) in PASS_THROUGH:
                _check_inner(value, name, where)
            elif (component, name) not in types:
                names = [field for owner, field in types if owner == component]
                raise UnknownFlag(
                    f"{where}: [{component}] has no {name}.{did_you_mean(name, names) or _right_table(name)}"
                )
            else:
                raise InvalidValue(f"{where}: {name} is {value!r}: it must be {types[component, name]}.")
    return values


def _check_inner(value: object, name: str, where: str) -> None:
    if not isinstance(value, dict):
        raise InvalidValue(f"{where}: {name} must be a table.")
    types: dict[str, ValueType | None]
    if name == "sglang":
        types = {field.name: field.type for field in sglang_fields().values()}
    else:
        types = {key: type_ if isinstance(type_, ValueType) else None for key, type_ in tables.CLASSIC.values()}
        types |= {field.name: field.type for field in megatron_fields().values() if field.type}
    for key, inner in value.items():
        if key not in types:
            raise UnknownFlag(f"{where}: {name} has no setting {key}.{did_you_mean(key, types)}")
        expected = types[key]
        if expected is not None and not fits(inner, expected):
            raise InvalidValue(f"{where}: {name}.{key} is {inner!r}: it must be {expected}.")


def _right_table(name: str) -> str:
    owner = next((field.component for field in settings_fields() if field.name == name), None)
    return f" {name} belongs in [{owner}]." if owner else ""


def _line(text: str, component: str | None, name: str) -> int | str:
    """Return the line of a key, or of a table if `component` is None; `?` for unusual spellings."""
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        if table := re.match(r"\s*\[+\s*([\w.\-\"]+)\s*\]", line):
            header = table[1]
            if header == (name if component is None else f"{component}.{name}") or (
                component is None and header.startswith(f"{name}.")
            ):
                return number
        elif header == (component or "") and re.match(rf"\s*\"?{re.escape(name)}\"?\s*[=.]", line):
            return number
    return "?"


def _table(header: str, values: Mapping[str, Any]) -> str:
    lines = [f"{_key(name)} = {_value(value)}" for name, value in values.items() if value is not None]
    return "\n".join([f"[{header}]", *lines, ""])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: object) -> str:
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items() if inner is not None) + "}"
        )
    raise ConfigError(f"{value!r} cannot be written as TOML.")
