"""Generate docs/events.md from the event structs: `python -m tests.schemas.event_table`."""

from __future__ import annotations

import enum
import inspect
import re
from typing import Any, get_args, get_type_hints

import msgspec

from schemas.event import Event, type_of
from schemas.registry import EVENT_CLASSES, NOUNS
from tools.page_command import print_page

_HEAD = """# Events

This page is generated from the structs in `schemas/`: `python -m tests.schemas.event_table > docs/events.md`.

An event is a MessagePack map in an envelope: `id`, `run`, `schema`, `at` (UTC nanoseconds), `producer`, `event`, and
optionally `cause` (the id of the event that led to it) and `traceparent`. It is stored under the subject
`slime.<run>.<type>.<entity>`. Fields with a default may be absent. Shapes are in brackets: `int32 [prompt]` is one
int32 per token of the prompt. `python -m tools.json_schema` prints the same as JSON Schema.
"""


def event_table() -> str:
    """Return the page: every event, then the structs and enums in their fields."""
    lines = [_HEAD]
    for noun in NOUNS:
        lines += [f"## {noun}", ""]
        for cls in EVENT_CLASSES:
            if type_of(cls).split(".")[0] == noun:
                lines += [f"### `{type_of(cls)}`", "", *_described(cls)]
    lines += ["## Parts of events", ""]
    for part in sorted(parts(), key=lambda part: part.__name__):
        lines += [f"### `{part.__name__}`", "", *_described(part)]
    return "\n".join(lines).rstrip() + "\n"


def _described(cls: type[Any]) -> list[str]:
    lines = [inspect.cleandoc(cls.__doc__ or ""), ""]
    if issubclass(cls, enum.Enum):
        return [*lines, "One of " + ", ".join(f"`{member.value}`" for member in cls) + ".", ""]
    hints, texts = get_type_hints(cls), field_texts(cls)
    lines += ["| field | type | default | description |", "|---|---|---|---|"]
    for field in msgspec.structs.fields(cls):
        cells = f"`{field.name}`", f"`{_type_name(hints[field.name])}`", _default(field), texts[field.name]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def field_texts(cls: type[Any]) -> dict[str, str]:
    """Return the `doc` text of each field of a struct, empty if a field has none."""
    texts = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        metas = [meta for meta in getattr(hint, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
        texts[name] = next((meta.description for meta in metas if meta.description), "")
    return {name: texts[name] for name in cls.__struct_fields__}


def parts() -> set[type[Any]]:
    """Return the structs and enums in the fields of events."""
    seen: set[type[Any]] = set()
    waiting: list[Any] = [hint for cls in EVENT_CLASSES for hint in get_type_hints(cls).values()]
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct | enum.Enum) and hint not in seen:
            seen.add(hint)
            waiting += get_type_hints(hint).values() if issubclass(hint, msgspec.Struct) else []
    return {part for part in seen if not issubclass(part, Event)}


def _type_name(hint: Any) -> str:
    """Return a type as in the source, without modules, with `|` escaped for a table cell."""
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
    print_page(__doc__, event_table)
