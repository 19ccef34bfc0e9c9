"""`joined_text`: the text of a chat message's content, by one rule for prompt files, producers and agents."""

from typing import Any

TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
"""Kinds of text parts. The model cannot read other kinds, such as an image, a sound or a file."""


class BadContent(Exception):
    """Message content that is not text. path: keys and indexes below the content. message: one clause."""

    def __init__(self, path: tuple[str | int, ...], message: str) -> None:
        super().__init__(message)
        self.path, self.message = path, message


def joined_text(content: object, between: str = "\n") -> str:
    """Return a text unchanged, and a list of text parts joined with `between`.

    Raises BadContent for null, a number, an object, and a part that is not text.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise BadContent((), "this is missing")
    if not isinstance(content, list):
        raise BadContent((), "this has to be a list")
    return between.join(_part_text(part, at) for at, part in enumerate(content))


def _part_text(part: object, at: int) -> str:
    if not isinstance(part, dict):
        raise BadContent((at,), "this has to be an object")
    kind = _text_field(part, "type", at)
    if kind not in TEXT_PARTS:
        raise BadContent((at, "type"), f"the model reads text, not {kind}")
    return _text_field(part, "refusal" if kind == "refusal" else "text", at)


def _text_field(part: dict[str, Any], name: str, at: int) -> str:
    value = part.get(name)
    if value is None:
        raise BadContent((at, name), "this is missing")
    if not isinstance(value, str):
        raise BadContent((at, name), "this has to be a text")
    return value
