"""Prompts for the inbox out of JSON: one object per line, or one list."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from schemas.inbox import InboxPrompt

_PLACE = re.compile(r"(?P<message>.*?)(?: - at `\$\.?(?P<field>[^`]*)`)?$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Line:
    """A prompt and where it stood, `file:line`."""

    place: str
    prompt: InboxPrompt


@dataclass(frozen=True, slots=True)
class BadLine:
    """What cannot be sent: where, which field, why."""

    place: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.field + ': ' if self.field else ''}{self.message}"


def read_lines(file: TextIO, name: str, *, key_field: str | None = None) -> Iterator[Line | BadLine]:
    """The prompts of a file, one by one; a list, or one object over several lines, is read whole.

    A prompt's key is its field `key_field` (`key` where none is named), or the sha256 of its line.
    """
    lines = enumerate(file, 1)
    first = next(((number, line) for number, line in lines if line.strip()), None)
    if first is None:
        return
    if first[1].lstrip()[:1] == "[" or first[1].strip() == "{":
        yield from _whole(first[1] + file.read(), name, key_field)
        return
    for number, line in itertools.chain([first], lines):
        if line.strip():
            yield _line(line.strip().encode(), f"{name}:{number}", key_field)


def _whole(text: str, name: str, key_field: str | None) -> Iterator[Line | BadLine]:
    try:
        items = msgspec.json.decode(text, type=list[msgspec.Raw] | dict[str, Any])
    except msgspec.DecodeError as error:
        yield BadLine(name, "", f"not JSON: {error}")
        return
    if isinstance(items, dict):
        yield _line(msgspec.json.encode(items), name, key_field)
        return
    for number, item in enumerate(items, 1):
        yield _line(bytes(item), f"{name}:item {number}", key_field)


def _line(data: bytes, place: str, key_field: str | None) -> Line | BadLine:
    try:
        fields = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        return BadLine(place, "", f"not JSON: {error}")
    if not isinstance(fields, dict):
        return BadLine(place, "", "not a JSON object: write {...} with a prompt")
    return _prompt(fields, data, place, key_field)


def _prompt(fields: dict[str, Any], data: bytes, place: str, key_field: str | None) -> Line | BadLine:
    if key_field and key_field not in fields:
        return BadLine(place, key_field, "missing, and --key-field says that it names the prompt")
    key = fields.pop(key_field or "key", None)
    fields["key"] = hashlib.sha256(data).hexdigest() if key is None else str(key)
    if "messages" in fields:
        if "prompt" in fields:
            return BadLine(place, "messages", "stands beside prompt: give one of them")
        fields["prompt"] = fields.pop("messages")
    try:
        return Line(place, msgspec.convert(fields, InboxPrompt))
    except msgspec.ValidationError as error:
        match = _PLACE.match(str(error))
        return BadLine(place, (match["field"] or "") if match else "", match["message"] if match else str(error))
