"""Explain why a line of JSON cannot be read: the field and the reason."""

import codecs
import contextlib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas.outside_json import read_json
from schemas.text import message_text

MARK = codecs.BOM_UTF8
"""A byte order mark, to be removed."""
EXPLAINED = 1 << 20
"""Most bytes of a line that is read again to find a better reason than the decoder's."""
_KINDS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PAR1": "Parquet",
}
"""First bytes of a file to its kind. The order matters: a mark of UTF-32 begins with one of UTF-16."""
_ENDINGS = {"gzip": "name it .jsonl.gz", "zstd": "name it .jsonl.zst", "Parquet": "name it .parquet"}
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|\\.|[{}\[\]]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class BadField:
    """A field that cannot be read, and why; its name is empty if it is unknown."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field!r} {self.message}" if self.field else self.message


def without_mark(line: bytes) -> bytes:
    """Return a line without a byte order mark at its start."""
    return line.removeprefix(MARK)


def kind_of(head: bytes) -> str | None:
    """Return what is wrong with a file that begins with these bytes, and what to do; None if it may be UTF-8 text."""
    kind = next((kind for mark, kind in _KINDS.items() if head.startswith(mark)), None)
    if kind is None:
        return None
    advice = _ENDINGS.get(kind, f"convert it, as with iconv -f {kind} -t UTF-8")
    return f"holds {kind}, and lines of JSON in UTF-8 are read here: {advice}"


def fields_of(line: bytes, used: Collection[str] | None = None) -> dict[str, Any] | BadField:
    """Return the fields of an object that cannot be decoded as a whole, decoded one by one; or the first bad field.

    used: fields that must be readable; None: all. Further fields that cannot be read are left out.
    """
    try:
        fields = read_json(line, dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        if isinstance(error.__cause__, RecursionError):
            return BadField(deep_field(line), "is nested too deeply to be read")
        return BadField("", f"not JSON: {why_not(line, error)}")
    read: dict[str, Any] = {}
    for name, value in fields.items():
        try:
            read[name] = read_json(value, Any)
        except msgspec.DecodeError as error:
            if used is None or name in used:
                return BadField(name, f"cannot be read: {reason_of(error)}")
    return read


def why_not(line: bytes, error: Exception) -> str:
    """Return why a line is not JSON. Python's reader accepts two things that JSON does not have."""
    reason = reason_of(error)
    if b"\r" in line.strip():
        return f"{reason}; lone carriage returns do not end a line: convert the file, as with tr '\\r' '\\n'"
    if len(line) > EXPLAINED:
        return reason
    constants: list[str] = []
    with contextlib.suppress(ValueError, RecursionError):
        fields = json.loads(line, parse_constant=constants.append)
        if constants:
            return f"{constants[0]} is no JSON value: write null, or a text; {reason}"
        items = fields.items() if isinstance(fields, dict) else ()
        halved = next((name for name, value in items if _is_halved(name) or _is_halved(value)), None)
        if halved is not None:
            return f"{halved!r} has half a character, a \\ud800 to \\udfff without its other half; {reason}"
    return reason


def reason_of(error: Exception) -> str:
    """Return a decoder's message without its path, which has only indices."""
    return message_text(error).partition(" - at `$")[0]


def deep_field(line: bytes, depth: int = 64) -> str:
    """Return the field of an object that is nested more deeply than `depth`; empty if there is none."""
    name, level = b"", 0
    for match in _TOKEN.finditer(line[:EXPLAINED]):
        token = match[0]
        if token in (b"{", b"["):
            level += 1
        elif token in (b"}", b"]"):
            level -= 1
        elif level == 1 and token.startswith(b'"') and line[match.end() : match.end() + 8].lstrip()[:1] == b":":
            name = token[1:-1]
        if level > depth:
            return name.decode(errors="replace")
    return ""


def _is_halved(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False
