"""`joined_text`: the text of a chat message's content, by one rule for prompt files, producers and agents."""

from typing import Any

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
"""Kinds of parts that are texts. Every other kind (an image, a sound, a file) is nothing that the model can read."""


class BadContent(Exception):
    """A content that is no text. path: keys and indexes below the content; message: one clause."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path, self.message = path, message


def joined_text(content: Any, between: str = "\n") -> str:
    """Return a content that is a text as it is; of a list of parts their texts with `between` between them.

    Raises BadContent for null, a number, an object, and a part that is no text.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise BadContent((), "this is missing")
    if not isinstance(content, list):
        raise BadContent((), "this has to be a list")
    return between.join(_part_text(part, at) for at, part in enumerate(content))


def _part_text(part: Any, at: int) -> str:
    if not isinstance(part, dict):
        raise BadContent((at,), "this has to be an object")
    kind = _text_field(part, "type", at)
    if kind not in TEXT_PARTS:
        raise BadContent((at, "type"), f"the model reads text, and no {kind}")
    return _text_field(part, "refusal" if kind == "refusal" else "text", at)


def _text_field(part: dict[str, Any], name: str, at: int) -> str:
    value = part.get(name)
    if value is None:
        raise BadContent((at, name), "this is missing")
    if not isinstance(value, str):
        raise BadContent((at, name), "this has to be a text")
    return value
