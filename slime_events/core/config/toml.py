"""Settings as TOML: a table per component, the same names as the fields."""

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
    """The settings as TOML, as `read_toml` reads them; None is left out, as TOML has no null."""
    tables: list[str] = []
    for component, values in msgspec.to_builtins(settings).items():
        inner = {name: values.pop(name) for where, name in PASS_THROUGH if where == component}
        tables.append(_table(component, values))
        tables.extend(_table(f"{component}.{name}", table) for name, table in inner.items() if table)
    return "\n".join(tables)


def settings_from(values: Mapping[str, Mapping[str, Any]]) -> TrainSettings:
    """Settings with `values` over the defaults; InvalidValue where a value is not of its field's type."""
    try:
        return msgspec.convert(values, TrainSettings)
    except msgspec.ValidationError as error:
        raise InvalidValue(f"A setting has a value that it cannot have: {error}") from error


def read_toml(text: str, source: str, registered: Registered = NOTHING_REGISTERED) -> Values:
    """The values of a TOML text, each name and type checked; errors carry file and line."""
    try:
        values: Values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{source} is not TOML: {error}") from error
    types = {(field.component, field.name): registered.type_of(field) for field in settings_fields()}
    for component, table in values.items():
        if component not in COMPONENTS or not isinstance(table, dict):
            where = f"{source}, line {_line(text, None, component)}"
            hint = _right_table(component) or did_you_mean(component, COMPONENTS) or f" There are {_ALL}."
            raise UnknownFlag(f"{where}: there is no table [{component}].{hint}")
        for name, value in table.items():
            is_right = (component, name) in types and (component, name) not in PASS_THROUGH
            if is_right and fits(value, types[component, name]):
                continue  # a run's settings are hundreds: the line is looked for where it is named
            where = f"{source}, line {_line(text, component, name)}"
            if (component, name) in PASS_THROUGH:
                _check_inner(value, name, where)
            elif (component, name) not in types:
                known = [field for owner, field in types if owner == component]
                raise UnknownFlag(
                    f"{where}: [{component}] has no {name}.{did_you_mean(name, known) or _right_table(name)}"
                )
            else:
                raise InvalidValue(f"{where}: {name} is {value!r}, and should be {types[component, name]}.")
    return values


def _check_inner(value: Any, name: str, where: str) -> None:
    if not isinstance(value, dict):
        raise InvalidValue(f"{where}: {name} is a table of its own.")
    known: dict[str, ValueType | None]
    if name == "sglang":
        known = {field.name: field.type for field in sglang_fields().values()}
    else:
        known = {name: one if isinstance(one, ValueType) else None for name, one in tables.CLASSIC.values()}
        known |= {field.name: field.type for field in megatron_fields().values() if field.type}
    for one, inner in value.items():
        if one not in known:
            raise UnknownFlag(f"{where}: {name} has no setting {one}.{did_you_mean(one, known)}")
        expected = known[one]
        if expected is not None and not fits(inner, expected):
            raise InvalidValue(f"{where}: {name}.{one} is {inner!r}, and should be {expected}.")


def _right_table(name: str) -> str:
    owner = next((field.component for field in settings_fields() if field.name == name), None)
    return f" {name} belongs into [{owner}]." if owner else ""


def _line(text: str, component: str | None, name: str) -> int | str:
    """The line of a key (or of a table, where `component` is None); `?` for unusual spellings."""
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


def _value(value: Any) -> str:
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items() if one is not None) + "}"
    raise ConfigError(f"{value!r} cannot be written as TOML.")
