"""`Counted`: a tokenizer that notes how much it was given."""

from __future__ import annotations


class Counted:
    """A token for each `width` characters. read: characters of each text that it was asked for."""

    def __init__(self, width: int = 1) -> None:
        self.read: list[int] = []
        self._width = width

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert add_special_tokens is False, "each piece would have some more"
        self.read.append(len(text))
        return [1] * (len(text) // self._width)
