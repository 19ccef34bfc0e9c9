"""Test what a reader of parsed text returns while it waits for more, and when SGLang's parser raises at the end."""

from __future__ import annotations

from typing import Any

from serve_apps.rollouts.agents.agent_request import Content
from serve_apps.rollouts.agents.turn_reader import Parsed


class Tools:
    """A parser of calls. raises: at the end of its text."""

    detector = None

    def __init__(self, *, raises: bool = False) -> None:
        self._raises, self.read = raises, list[str]()

    def parse_stream_chunk(self, text: str) -> tuple[str, list[Any]]:
        self.read.append(text)
        return text, []

    def parse_stream_end(self) -> tuple[str, list[Any]]:
        if self._raises:
            raise KeyError("half a call")
        return "", []


def parsed(tools: Tools) -> Parsed:
    return Parsed(None, tools, lambda number, name: f"call-{number}", parallel=True)


def test_a_long_call_is_parsed_in_larger_pieces() -> None:
    """Each piece is parsed from the call's begin, so a piece of one token would take longer with each."""
    tools = Tools()
    reader = parsed(tools)
    reader._calls = [["call-0", "look", ""]]
    reader.feed("x" * 4000, 4000)
    assert tools.read == ["x" * 4000]
    assert reader.feed("y", 1) == []
    assert tools.read == ["x" * 4000], "it waits"
    reader.end()
    assert tools.read == ["x" * 4000, "y"]


def test_a_parser_that_raises_at_the_end_costs_no_text() -> None:
    reader = parsed(Tools(raises=True))
    parts = [*reader.feed("half ", 1), *reader.end()]
    assert [part.text for part in parts if isinstance(part, Content)] == ["half "]
    assert reader.message()["content"] == "half "
