"""docs/events.md, made from the structs and their docstrings: `python -m tests.schemas.event_table`."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from typing import Any, get_args, get_type_hints

import msgspec

from schemas.event import Event, type_of
from schemas.registry import EVENT_CLASSES, NOUNS

_HEAD = """# Events

This page is made from the structs in `schemas/`: `python -m tests.schemas.event_table > docs/events.md`.

An event is a MessagePack map in an envelope: `id`, `run`, `schema`, `at` (UTC nanoseconds), `producer`, `event`, and
where there are any `cause` (the id of the event that led to it) and `traceparent`. It is stored under the subject
`slime.<run>.<type>.<entity>`. Fields with a default may be absent. `python -m tools.json_schema` prints all of this
as JSON Schema.
"""


def event_table() -> str:
    """The whole page: every event, then the structs and enums that their fields are made of."""
    lines = [_HEAD]
    for noun in NOUNS:
        lines += [f"## {noun}", ""]
        for cls in EVENT_CLASSES:
            if type_of(cls).split(".")[0] == noun:
                lines += [f"### `{type_of(cls)}`", "", *_described(cls)]
    lines += ["## Parts of events", ""]
    for part in sorted(_parts(), key=lambda part: part.__name__):
        lines += [f"### `{part.__name__}`", "", *_described(part)]
    return "\n".join(lines).rstrip() + "\n"


def _described(cls: type[Any]) -> list[str]:
    lines = [inspect.cleandoc(cls.__doc__ or ""), ""]
    if issubclass(cls, enum.Enum):
        return [*lines, "One of " + ", ".join(f"`{member.value}`" for member in cls) + ".", ""]
    hints = get_type_hints(cls)
    lines += ["| field | type | default |", "|---|---|---|"]
    for field in msgspec.structs.fields(cls):
        lines.append(f"| `{field.name}` | `{_type_name(hints[field.name])}` | {_default(field)} |")
    return [*lines, ""]


def _parts() -> set[type[Any]]:
    """Structs and enums within events."""
    found: set[type[Any]] = set()
    waiting: list[Any] = [hint for cls in EVENT_CLASSES for hint in get_type_hints(cls).values()]
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct | enum.Enum) and hint not in found:
            found.add(hint)
            waiting += get_type_hints(hint).values() if issubclass(hint, msgspec.Struct) else []
    return {part for part in found if not issubclass(part, Event)}


def _type_name(hint: Any) -> str:
    """As in the source, without modules, and with its bar kept from ending the table's cell."""
    name = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return re.sub(r"\b(?:[a-z_]+\.)+", "", name).replace("NoneType", "None").replace("|", "\\|")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, msgspec.Struct):
        return "empty"
    return f"`{value.value!r}`" if isinstance(value, enum.Enum) else f"`{value!r}`"


if __name__ == "__main__":
    sys.stdout.write(event_table())
