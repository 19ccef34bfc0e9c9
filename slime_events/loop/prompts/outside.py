"""Prompts, trajectories and rewards that producers send: from a line of JSON to an item."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES, InboxPrompt
from schemas.outside import OutsideGroup, OutsideReward
from schemas.outside_json import read_any
from slime_events.loop.prompts.inbox_message import WrongField, as_carried
from slime_events.loop.prompts.json_line import BadField, fields_of, why_not, without_mark

Item = InboxPrompt | OutsideGroup | OutsideReward
"""An item that producers send."""
ITEMS: dict[str, type[Item]] = {PROMPTS: InboxPrompt, TRAJECTORIES: OutsideGroup, REWARDS: OutsideReward}
"""Item type by the last token of the NATS subject, which is also the last segment of the HTTP route."""


@dataclass(frozen=True, slots=True)
class Line:
    """An item to send."""

    place: Annotated[str, doc("where it was read, `file:line`")]
    item: Item

    @property
    def key(self) -> str:
        """The sender's name of the item."""
        return self.item.key


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that cannot be sent."""

    place: Annotated[str, doc("where it was read, `file:line`")]
    field: Annotated[str, doc("wrong field; empty: the whole line")]
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.field + ': ' if self.field else ''}{self.message}"


def read_line(
    data: bytes, place: str, *, key_field: str | None = None, default: str | None = None, kind: str = PROMPTS
) -> Line | BadLine:
    """Return the item of a line, a JSON object. kind: type of the item, by `ITEMS`.

    The key is in the field `key_field` (default: `key`); without the field, it is `default`, or the sha256 of the line.
    `messages` is another name for `prompt`.
    """
    data = without_mark(data)
    try:
        fields = read_any(data)
    except msgspec.DecodeError as error:
        read = fields_of(data) if data.lstrip()[:1] == b"{" else BadField("", f"not JSON: {why_not(data, error)}")
        if isinstance(read, BadField):
            return BadLine(place, read.field, read.message)
        fields = read
    if not isinstance(fields, dict):
        return BadLine(place, "", "not a JSON object: write {...} with a prompt")
    try:
        fields = as_carried(fields)
    except WrongField as error:
        return BadLine(place, error.field, error.message)
    if kind == REWARDS:  # a sample has a single reward, which needs no key
        return _line(fields, place, kind)
    if key_field and key_field not in fields:
        return BadLine(place, key_field, "missing: --key-field names it as the prompt's key")
    key = fields.pop(key_field or "key", None)
    fields["key"] = (default or hashlib.sha256(data).hexdigest()) if key is None else str(key)
    if "messages" in fields:
        if "prompt" in fields:
            return BadLine(place, "messages", "there is also a prompt: give one of them")
        fields["prompt"] = fields.pop("messages")
    return _line(fields, place, kind)


def _line(fields: dict[str, Any], place: str, kind: str) -> Line | BadLine:
    try:
        return Line(place, msgspec.convert(fields, ITEMS[kind]))
    except msgspec.ValidationError as error:
        message, _, field = str(error).partition(" - at `$")
        return BadLine(place, field.removeprefix(".").removesuffix("`"), message)
