"""An answer's text as its tokens come: bytes of tokens, stop strings, what ends it, and how much is read at a time."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.function_call.core_types import ToolCallItem
from tokenizers.pre_tokenizers import ByteLevel

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
    AgentRequest,
    CallArguments,
    CallBegun,
    Content,
    DialectName,
    Reasoning,
)
from serve_apps.rollouts.agents.canonical import calls_of
from serve_apps.rollouts.agents.detokenizer import BYTES, Detokenizer, StopFilter
from serve_apps.rollouts.agents.turn_reader import Parsed, TurnReader, _arguments_left
from tests.agents.byte_tokenizer import END
from tests.agents.test_turn_reader import PLAIN, QWEN, TOKENIZER, WITH_TOOLS, bytes_ids, fed, ids

EOS = int(TOKENIZER.eos_token_id)
PLAINLY = AgentRequest(DialectName.CHAT, "m")


class Vocabulary:
    """Names and texts of tokens, by id."""

    def __init__(self, *tokens: tuple[str | None, str]) -> None:
        self._tokens = tokens

    def convert_ids_to_tokens(self, token: int) -> str | None:
        return self._tokens[token][0]

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        return "".join(self._tokens[token][1] for token in tokens)


BROKEN = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("name", "text", "piece"),
    [
        ("a", "a", b"a"),
        ("\u2581word", "word", b" word"),
        ("\u2581word", " word", b" word"),
        ("word", "word", b"word"),
        (None, "word", b"word"),
        (None, BROKEN, BROKEN.encode()),
        ("<0xE4>", BROKEN, b"\xe4"),
        ("<0x0A>", "\n", b"\n"),
        ("\u0120\u00e4", " " + BROKEN, b" \xe4"),
        ("a\u4e16", BROKEN, BROKEN.encode()),
        ("\u4e16", BROKEN, BROKEN.encode()),
    ],
)
def test_the_bytes_of_a_token(name: str | None, text: str, piece: bytes) -> None:
    assert Detokenizer(Vocabulary((name, text)), skips=True).piece(0) == piece


def test_bytes_have_the_names_of_byte_level_vocabularies() -> None:
    assert set(BYTES) == set(ByteLevel.alphabet())
    assert sorted(BYTES.values()) == list(range(256))
    assert [BYTES[name] for name in "!~\u00a1\u00ac\u00ae\u00ff\u0120"] == [33, 126, 161, 172, 174, 255, 32]


def test_text_waits_for_the_rest_of_a_character_and_no_longer() -> None:
    smile = bytes_ids("\N{GRINNING FACE}".encode())
    detokenizer = Detokenizer(TOKENIZER, skips=True)
    assert [detokenizer.add([token]) for token in smile] == ["", "", "", "\N{GRINNING FACE}"]
    assert [detokenizer.add([token]) for token in ids("ab")] == ["a", "b"]
    assert detokenizer.add(ids("cd") + smile[:2]) == "cd"
    assert detokenizer.end() == BROKEN
    wrong = Detokenizer(TOKENIZER, skips=True)
    assert wrong.add(bytes_ids(b"\xff" * 3)) == ""
    assert wrong.add(bytes_ids(b"\xff")) == BROKEN
    assert wrong.add(bytes_ids(b"\xff")) == BROKEN
    assert wrong.end() == BROKEN * 3


def test_special_tokens_are_left_out_where_they_are_skipped() -> None:
    for skips, text in ((True, "ab"), (False, f"a{END}b")):
        assert Detokenizer(TOKENIZER, skips=skips).add(ids(f"a{END}b")) == text


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "left"),
    [
        ([], ["ab"], ["ab"], ""),
        (["END"], ["abE", "N", "D"], ["ab", "", ""], ""),
        (["END"], ["abE", "x"], ["ab", "Ex"], ""),
        (["END"], ["abEN"], ["ab"], "EN"),
        (["END"], ["aENDbEND"], ["a"], ""),
        (["b", "a"], ["xab"], ["x"], ""),
        (["aab", "ab"], ["xaa"], ["x"], "aa"),
        (["abc", "b"], ["xab"], ["xa"], ""),
        (["x"], ["ab"], ["ab"], ""),
        (["aba"], ["aab"], ["a"], "ab"),
    ],
)
def test_what_may_begin_a_stop_string_is_held(stops: list[str], pieces: list[str], shown: list[str], left: str) -> None:
    filter_ = StopFilter(stops, trims=True)
    assert [filter_.add(piece) for piece in pieces] == shown
    assert filter_.end() == left
    assert filter_.end() == ""


def test_a_stop_string_that_is_not_trimmed_is_shown() -> None:
    filter_ = StopFilter(["END"], trims=False)
    assert [filter_.add(piece) for piece in ("abE", "N", "D", "c")] == ["abE", "N", "D", "c"]
    assert filter_.end() == ""
    whole = StopFilter(["END", "EN"], trims=False)
    assert (whole.add("aENDb"), whole.matched) == ("aENDb", "EN")
    trimmed = StopFilter(["END"], trims=True)
    assert (trimmed.add("aEND"), trimmed.matched, trimmed.add("more"), trimmed.end()) == ("a", "END", "", "")


def ended(request: AgentRequest, text: str, stop: StopReason = StopReason.STOP) -> TurnReader:
    return fed(PLAIN.reader(request, "t", []), ids(text), [1, 3], stop)[1]


def test_what_ended_an_answer_is_left_out_and_named() -> None:
    shows = AgentRequest(DialectName.CHAT, "m", skip_special=False)
    keeps = AgentRequest(DialectName.CHAT, "m", skip_special=False, trim_stop=False)
    for request, text, stop, content, matched in (
        (shows, f"a{END}", StopReason.STOP, "a", EOS),
        (keeps, f"a{END}", StopReason.STOP, f"a{END}", EOS),
        (shows, f"a{END}", StopReason.LENGTH, f"a{END}", None),
        (shows, f"a{END}b", StopReason.STOP, f"a{END}b", None),
        (shows, f"a{END}{END}", StopReason.STOP, f"a{END}", EOS),
        (PLAINLY, "a", StopReason.STOP, "a", None),
        (PLAINLY, "", StopReason.STOP, "", None),
    ):
        reader = ended(request, text, stop)
        assert (reader.text, reader.message["content"], reader.matched) == (content, content, matched)


def test_a_stop_string_is_what_ended_an_answer() -> None:
    request = AgentRequest(DialectName.CHAT, "m", sampling={"stop": ["END"]}, skip_special=False)
    reader = ended(request, f"aEND{END}")
    assert (reader.text, reader.matched) == ("a", "END")
    own = PLAIN.reader(request, "t", [], ["b"])
    assert fed(own, ids("aENDb"), [2])[1].text == "aEND"


def test_tokens_that_end_an_answer_may_be_asked_for() -> None:
    (stop,) = ids("x")
    request = AgentRequest(DialectName.CHAT, "m", sampling={"stop_token_ids": [stop]})
    reader = ended(request, "abx")
    assert (reader.text, reader.matched) == ("ab", stop)


def test_parts_have_the_tokens_that_came() -> None:
    reader = PLAIN.reader(AgentRequest(DialectName.CHAT, "m", log_probs=0), "t", [])
    assert reader.feed(ids("abc"), [-1.0, -2.0, -3.0]) == [
        Content("abc", tuple(ids("abc")), (-1.0, -2.0, -3.0), (b"a", b"b", b"c"))
    ]
    smile = bytes_ids("\N{GRINNING FACE}".encode())
    assert reader.feed(smile[:1], [-4.0]) == [Content("", (smile[0],), (-4.0,), (b"\xf0",))]
    assert reader.feed([], []) == []
    assert reader.feed([EOS], [-5.0])[0].tokens == (EOS,)  # type: ignore[union-attr]
    assert len(reader.pieces) == 5
    assert ended(PLAINLY, "abc").pieces == ()


def test_the_tokens_of_reasoning_are_counted() -> None:
    thought = "<think>abc</think>"
    for text, count in (
        (f"{thought}yes{END}", len(ids(thought))),
        (f"yes{END}", 0),
        (f'{thought}<tool_call>\n{{"name": "look", "arguments": {{}}}}\n</tool_call>{END}', None),
    ):
        reader = fed(QWEN.reader(WITH_TOOLS, "t", []), ids(text), [5, 9])[1]
        if count is None:
            assert len(ids(thought)) <= reader.reasoning_tokens < len(ids(text))
        else:
            assert reader.reasoning_tokens == count


class Calls:
    """Play a parser of tools with listed results for each piece; it counts the pieces."""

    def __init__(self, **after: list[ToolCallItem]) -> None:
        self.pieces, self._after = list[str](), after

    def parse_stream_chunk(self, text: str) -> tuple[str, list[ToolCallItem]]:
        self.pieces.append(text)
        more = [ToolCallItem(tool_index=0, parameters=text)] if len(self.pieces) > 1 else []
        return "", self._after.get(text, more)

    def parse_stream_end(self) -> tuple[str, list[ToolCallItem]]:
        return "", []

    detector = None


def parsed(tools: Any, *, parallel: bool = True) -> Parsed:
    return Parsed(None, tools, lambda index, name: f"{index}:{name}", parallel=parallel)


def item(name: str | None = None, parameters: str = "") -> ToolCallItem:
    return ToolCallItem(tool_index=0, name=name, parameters=parameters)


def test_a_long_call_is_read_in_pieces_that_grow() -> None:
    """All of a call is read again with each piece: what that costs stays linear."""
    calls = Calls(begin=[item("look")])
    reader = parsed(calls)
    reader.feed("begin", 1)
    parts = [reader.feed("x", 1) for _ in range(3000)]
    assert all(parts[:31])
    assert [] in parts
    assert None not in parts
    assert 100 < len(calls.pieces) < 400
    assert max(map(len, calls.pieces)) <= 3000 / 20
    reader.end()
    assert [call.arguments for call in calls_of(reader.message())] == ["x" * 3000]


def test_a_parser_of_calls_that_raises_at_the_end_costs_nothing_of_the_text() -> None:
    class Raises(Calls):
        def parse_stream_end(self) -> tuple[str, list[ToolCallItem]]:
            raise ValueError("half a call")

    reader = parsed(Raises(a=[item("look", "{}")]))
    assert [*reader.feed("a", 1), *reader.end()] == [CallBegun(0, "0:look", "look"), CallArguments(0, "{}")]


def test_text_without_calls_is_read_at_once() -> None:
    calls = Calls()
    reader = parsed(calls)
    for number in range(1, 201):
        reader.feed("x", 1)
        assert len(calls.pieces) == number


def test_calls_are_numbered_and_named() -> None:
    reader = parsed(Calls(a=[item("look", "{}"), item("go")], b=[item(None, "[1]")], c=[item("", "2")]))
    assert reader.feed("a", 1) == [CallBegun(0, "0:look", "look"), CallArguments(0, "{}"), CallBegun(1, "1:go", "go")]
    assert reader.feed("b", 1) == [CallArguments(1, "[1]")]
    assert reader.feed("c", 1) == [CallArguments(1, "2")]
    assert [call.id for call in calls_of(reader.message())] == ["0:look", "1:go"]


def test_calls_after_the_first_are_left_out_where_one_is_asked_for() -> None:
    fields: Any = {"a": [item("look", "1")], "b": [item("go", "2")], "c": [item(None, "3")]}
    reader = parsed(Calls(**fields), parallel=False)
    assert [reader.feed(text, 1) for text in "abc"] == [[CallBegun(0, "0:look", "look"), CallArguments(0, "1")], [], []]
    assert [call.arguments for call in calls_of(reader.message())] == ["1"]
    both = parsed(Calls(**fields))
    assert sum(len(both.feed(text, 1)) for text in "abc") == 5


def test_arguments_before_any_call_are_none() -> None:
    assert parsed(Calls(a=[item(None, "{}")])).feed("a", 1) == []


class Holds(Calls):
    """A parser that says `shown` for each piece, and finds a call at the end or not."""

    def __init__(self, shown: str, *, has_call: bool) -> None:
        super().__init__()
        self._shown, self._has_call = shown, has_call

    def parse_stream_chunk(self, text: str) -> tuple[str, list[ToolCallItem]]:
        return self._shown, []

    def has_tool_call(self, text: str) -> bool:
        return self._has_call


@pytest.mark.parametrize(
    ("shown", "has_call", "content"), [("", False, "<too"), ("", True, ""), ("<", False, "<too"), ("x", False, "x")]
)
def test_what_a_parser_of_calls_holds_back_is_shown_where_it_was_none(shown: str, has_call: bool, content: str) -> None:
    reader = parsed(Holds(shown, has_call=has_call))
    parts = [*reader.feed("<too", 1), *reader.end()]
    assert "".join(part.text for part in parts if isinstance(part, Content)) == content
    assert reader.message() == {"role": "assistant", "content": content}


class Thinks:
    """A parser of reasoning that raises, or says something at the end."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def parse_stream_chunk(self, text: str) -> tuple[str, str]:
        if self._error is not None:
            raise self._error
        return text, ""

    def parse_stream_end(self) -> tuple[str, str]:
        return "!", "so"


def test_what_a_parser_of_reasoning_holds_back_comes_at_the_end() -> None:
    reader = Parsed(Thinks(), None, lambda index, name: "", parallel=True)
    assert reader.is_parsed
    assert reader.feed("hm", 2) == [Reasoning("hm")]
    assert reader.end() == [Reasoning("!"), Content("so")]
    assert reader.message() == {"role": "assistant", "content": "so", "reasoning_content": "hm!"}
    assert reader.reasoning_tokens == 2
    assert not Parsed(None, None, lambda index, name: "", parallel=True).is_parsed


def test_text_goes_on_as_content_where_a_parser_raises() -> None:
    reader = Parsed(Thinks(ValueError("x")), None, lambda index, name: "", parallel=True)
    assert [reader.feed("a", 1), reader.feed("b", 1), reader.end()] == [[Content("a")], [Content("b")], []]
    assert reader.message() == {"role": "assistant", "content": "ab"}


def test_plain_text_is_read_at_once_and_parsed_text_by_token() -> None:
    assert len(PLAIN.reader(PLAINLY, "t", []).feed(ids("abc"), [0.0] * 3)) == 1
    assert len(QWEN.reader(WITH_TOOLS, "t", []).feed(ids("abc"), [0.0] * 3)) == 3


class Read:
    """Play a parser that has read calls and streamed part of their arguments."""

    def __init__(self, read: list[dict[str, Any]], streamed: list[str]) -> None:
        self.prev_tool_call_arr, self.streamed_args_for_tool = read, streamed


@pytest.mark.parametrize(
    ("read", "streamed", "left"),
    [
        ([{"name": "f", "arguments": {"a": 1}}], ['{"a"'], (0, ": 1}")),
        ([{"name": "f", "arguments": {"a": "世"}}], [""], (0, '{"a": "世"}')),
        ([{"name": "f", "arguments": '{"a": 1}'}], ['{"a"'], (0, ": 1}")),
        ([{"name": "f", "arguments": {}}, {"name": "g", "arguments": [1]}], ["{}", "["], (1, "1]")),
        ([{"name": "f", "arguments": {"a": 1}}], ['{"a": 1}'], None),
        ([{"name": "f", "arguments": {"a": 1}}], ['{"b"'], None),
        ([{"name": "f", "arguments": {}}, {"name": "g", "arguments": [1]}], ["{}"], None),
        ([{"name": "f", "arguments": [1]}], ["[", "x"], (0, "1]")),
        ([{"name": "f"}], ["{"], (0, "}")),
        ([], ["["], None),
        ([{"name": "f", "arguments": [1]}], [], None),
    ],
)
def test_arguments_that_a_parser_has_read_and_not_given_out(
    read: list[dict[str, Any]], streamed: list[str], left: tuple[int, str] | None
) -> None:
    left_over = [(item.tool_index, item.parameters) for item in _arguments_left(Read(read, streamed))]
    assert left_over == ([] if left is None else [left])
    assert _arguments_left(object()) == []
