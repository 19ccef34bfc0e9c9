"""An answer's tokens to its parts: the same message however they come, and no broken text on the way."""

from __future__ import annotations

import json
import logging
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.function_call.parser_names import TOOL_CALL_PARSER_NAMES
from sglang.srt.parser.reasoning_parser_names import REASONING_PARSER_NAMES

from schemas.errors import InvalidValue
from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
    AgentRequest,
    BadField,
    CallArguments,
    CallBegun,
    Content,
    DialectName,
    Part,
    Reasoning,
)
from serve_apps.rollouts.agents.canonical import calls_of
from serve_apps.rollouts.agents.detokenizer import BYTES, Detokenizer, StopFilter
from serve_apps.rollouts.agents.parsing import ParserNames, Parsers, parser_names
from serve_apps.rollouts.agents.turn_reader import TurnReader
from slime_events.core.config.engine import EngineSettings
from tests.agents.byte_tokenizer import END, byte_tokenizer

TOKENIZER = byte_tokenizer()
PLAIN = Parsers(ParserNames(), TOKENIZER)
QWEN = Parsers(ParserNames("qwen", "qwen3", grammar=True), TOKENIZER)
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
WITH_TOOLS = AgentRequest(DialectName.CHAT, "m", tools=(LOOK,))


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def bytes_ids(raw: bytes) -> list[int]:
    names = {byte: name for name, byte in BYTES.items()}
    return [TOKENIZER.convert_tokens_to_ids(names[byte]) for byte in raw]


def fed(
    reader: TurnReader, tokens: list[int], steps: list[int], stop: StopReason = StopReason.STOP
) -> tuple[list[Part], TurnReader]:
    cuts = sorted({0, len(tokens), *(step for step in steps if step < len(tokens))})
    parts: list[Part] = []
    for start, end in pairwise(cuts):
        parts += reader.feed(tokens[start:end], [-1.0] * (end - start))
    return parts + reader.end(stop), reader


def joined(parts: list[Part], kind: type[Content] | type[Reasoning] | type[CallArguments]) -> str:
    return "".join(part.text for part in parts if isinstance(part, kind))


_raw = st.binary(max_size=40) | st.text(max_size=20).map(str.encode) | st.lists(
    st.sampled_from([b"\xf0\x9f\x98\x80", b"\xf0", b"\x9f", b"\xe2\x82", b"a", b"\xff"]), max_size=12
).map(b"".join)  # fmt: skip
_steps = st.lists(st.integers(1, 200), max_size=20)


@given(_raw, _steps)
@settings(max_examples=200)
def test_text_comes_whole_however_tokens_come(raw: bytes, steps: list[int]) -> None:
    tokens = bytes_ids(raw)
    detokenizer = Detokenizer(TOKENIZER, skips=True)
    cuts = sorted({0, len(tokens), *(step for step in steps if step < len(tokens))})
    pieces = [detokenizer.add(tokens[start:end]) for start, end in pairwise(cuts)] + [detokenizer.end()]
    assert "".join(pieces) == TOKENIZER.decode(tokens)
    if raw.decode(errors="ignore").encode() == raw:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces[:-1]) or b"\xef\xbf\xbd" in raw


@given(_raw)
def test_pieces_are_the_bytes(raw: bytes) -> None:
    request = AgentRequest(DialectName.CHAT, "m", log_probs=0)
    _, reader = fed(PLAIN.reader(request, "t", []), bytes_ids(raw), [3, 7])
    assert b"".join(reader.pieces) == raw


@given(
    st.text(alphabet="ab<", max_size=30), st.lists(st.text(alphabet="ab<", min_size=1, max_size=4), max_size=3), _steps
)
@settings(max_examples=200)
def test_stop_strings_never_show(text: str, stops: list[str], steps: list[int]) -> None:
    cuts = sorted({0, len(text), *(step for step in steps if step < len(text))})
    filter_ = StopFilter(stops, trims=True)
    shown = "".join([filter_.add(text[start:end]) for start, end in pairwise(cuts)] + [filter_.end()])
    first = min((text.index(stop) for stop in stops if stop in text), default=len(text))
    if filter_.matched is None:
        assert shown == text
        assert first == len(text)
    else:
        assert shown == text[: text.index(filter_.matched)]
        assert shown == text[:first] or len(cuts) > 2


_texts = st.text(alphabet=st.sampled_from('abé世😀 <>/\n{}"tolcahink_'), max_size=30)
_arguments = st.dictionaries(st.text(max_size=5), st.text(max_size=12) | st.integers() | st.booleans(), max_size=3)


@given(_texts, _texts, st.lists(_arguments, max_size=2), st.lists(_steps, min_size=2, max_size=3))
@settings(max_examples=60)
def test_message_does_not_depend_on_how_tokens_come(
    thought: str, text: str, calls: list[dict[str, object]], ways: list[list[int]]
) -> None:
    called = "".join(
        f"\n<tool_call>\n{json.dumps({'name': 'look', 'arguments': call}, ensure_ascii=False)}\n</tool_call>"
        for call in calls
    )
    tokens = ids(f"<think>{thought}</think>{text}{called}{END}")
    messages = []
    for steps in ways:
        parts, reader = fed(QWEN.reader(WITH_TOOLS, "t", []), tokens, steps)
        message = reader.message
        assert joined(parts, Content) == message["content"]
        assert joined(parts, Reasoning) == message.get("reasoning_content", "")
        assert [part.id for part in parts if isinstance(part, CallBegun)] == [call.id for call in calls_of(message)]
        assert sum(len(part.tokens) for part in parts if isinstance(part, Content)) == len(tokens)
        messages.append(message)
    assert all(message == messages[0] for message in messages)


def test_reasoning_text_and_calls() -> None:
    text = (
        '<think>\nhm 世\n</think>\n\nLook:\n<tool_call>\n{"name": "look", "arguments": {"at": [1, 2.0]}}\n</tool_call>'
    )
    parts, reader = fed(QWEN.reader(WITH_TOOLS, "t", []), ids(text + END), list(range(0, 300, 7)))
    ((id, name, arguments),) = calls_of(reader.message)
    assert reader.message["content"] == "\n\nLook:\n"
    assert reader.message["reasoning_content"] == "\nhm 世\n"
    assert (name, json.loads(arguments)) == ("look", {"at": [1, 2]})
    assert [part for part in parts if isinstance(part, CallBegun)] == [CallBegun(0, id, "look")]
    assert json.loads(joined(parts, CallArguments)) == {"at": [1, 2.0]}
    assert reader.matched == TOKENIZER.eos_token_id
    assert END not in reader.text
    assert 0 < reader.reasoning_tokens < len(ids(text))


@pytest.mark.parametrize(
    ("prompt", "text", "reasoning", "content"),
    [
        ("<think>\n", "hm</think>yes", "hm", "yes"),
        ("<think>\n\n</think>\n\n", "yes", None, "yes"),
        ("", "yes", None, "yes"),
        ("", "<think>hm", "hm", ""),
    ],
)
def test_prompt_says_whether_the_answer_begins_in_reasoning(
    prompt: str, text: str, reasoning: str | None, content: str
) -> None:
    request = AgentRequest(DialectName.CHAT, "m")
    _, reader = fed(QWEN.reader(request, "t", ids(f"<|im_start|>assistant\n{prompt}")), ids(text + END), [2, 5])
    assert reader.message.get("reasoning_content") == reasoning
    assert reader.message["content"] == content


def test_one_call_where_one_is_asked_for() -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {"n": %d}}\n</tool_call>'
    request = AgentRequest(DialectName.CHAT, "m", tools=(LOOK,), parallel=False)
    _, reader = fed(QWEN.reader(request, "t", []), ids(text % 1 + "\n" + text % 2 + END), [9])
    assert [call.arguments for call in calls_of(reader.message)] == ['{"n": 1}']


def test_text_that_only_looks_like_a_call_is_content() -> None:
    for text in ("a <", "a <tool_ca", "1 < 2 </tool", "x\n<"):
        _, reader = fed(QWEN.reader(WITH_TOOLS, "t", []), ids(text + END), [1, 2])
        assert reader.message == {"role": "assistant", "content": text}


def test_call_that_was_cut_keeps_its_name() -> None:
    text = '<tool_call>\n{"name": "look", "arguments": {"at": "he'
    _, reader = fed(QWEN.reader(WITH_TOOLS, "t", []), ids(text), [4], StopReason.LENGTH)
    assert [call.name for call in calls_of(reader.message)] == ["look"]


def test_text_that_a_parser_raises_on_is_content() -> None:
    reader = QWEN.reader(WITH_TOOLS, "t", [])

    def broken(text: str) -> None:
        raise AssertionError(text)

    reader._parsed._tool_parser.parse_stream_chunk = broken
    assert fed(reader, ids("as it is" + END), [3])[1].message["content"] == "as it is"


def test_generate_has_text_alone() -> None:
    text = '<think>a</think><tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    request = AgentRequest(DialectName.GENERATE, "", text="x", tools=(LOOK,), skip_special=False, trim_stop=False)
    parts, reader = fed(QWEN.reader(request, "t", []), ids(text + END), [5])
    assert reader.text == joined(parts, Content) == text + END


@pytest.mark.parametrize("names", [ParserNames("no-such"), ParserNames(reasoning="no-such")])
def test_unknown_parser_is_named(names: ParserNames) -> None:
    with pytest.raises(InvalidValue, match="qwen"):
        Parsers(names, TOKENIZER)


def test_what_the_run_cannot_do_says_which_flag_to_set() -> None:
    with pytest.raises(BadField, match="--sglang-tool-call-parser") as error:
        PLAIN.check(WITH_TOOLS)
    assert error.value.field == "tools"
    without = Parsers(ParserNames("qwen"), TOKENIZER)
    for request, field in (
        (AgentRequest(DialectName.CHAT, "m", sampling={"json_schema": "{}"}), "response_format"),
        (AgentRequest(DialectName.GENERATE, "m", sampling={"regex": "a"}), "sampling_params.regex"),
        (AgentRequest(DialectName.CHAT, "m", tools=(LOOK,), tool_choice="required"), "tool_choice"),
    ):
        with pytest.raises(BadField, match="grammar") as error:
            without.check(request)
        assert error.value.field == field
    without.check(WITH_TOOLS)


def test_constraint_is_there_where_a_call_has_to_be() -> None:
    assert QWEN.constraint(WITH_TOOLS) == {}
    for choice in ("required", "look"):
        (kind,) = QWEN.constraint(AgentRequest(DialectName.CHAT, "m", tools=(LOOK,), tool_choice=choice))
        assert kind == "structural_tag"


def test_every_parser_reads_the_same_however_tokens_come(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # many say that this is not theirs
    text = (
        f'<think>\nhm 世</think>a < b [{{"name": "look"}}] [look(at="a")] <tool_call>\n{{"name": "look"}}</tool_c{END}'
    )
    for names in (
        *(ParserNames(tools=parser) for parser in TOOL_CALL_PARSER_NAMES),
        *map(_reasoning, REASONING_PARSER_NAMES),
    ):
        if "response_template" in (names.tools, names.reasoning):
            with pytest.raises(InvalidValue, match="response_template"):
                Parsers(names, TOKENIZER)
            continue
        parsers = Parsers(names, TOKENIZER)
        ways = [fed(parsers.reader(WITH_TOOLS, "t", []), ids(text), steps)[1] for steps in ([1], list(range(99)), [50])]
        assert all(reader.message == ways[0].message for reader in ways), names


def _reasoning(name: str) -> ParserNames:
    return ParserNames(reasoning=name)


@pytest.mark.parametrize("name", ["qwen", "glm", "pythonic", "llama3"])
def test_call_that_has_to_be_is_read_as_the_grammar_has_it_written(name: str) -> None:
    request = AgentRequest(DialectName.CHAT, "m", tools=(LOOK,), tool_choice="required")
    parsers = Parsers(ParserNames(name, grammar=True), TOKENIZER)
    (kind,) = parsers.constraint(request)
    array = '[{"name": "look", "parameters": {"at": "世"}}]'
    native = {"qwen": '<tool_call>\n{"name":"look", "arguments":{"at": "世"}}\n</tool_call>'}
    native["llama3"] = '<|python_tag|>{"name":"look", "arguments":{"at": "世"}}'
    text = array if kind == "json_schema" else native[name]
    _, reader = fed(parsers.reader(request, "t", []), ids(text + END), [1, 5, 20])
    assert [call[1:] for call in calls_of(reader.message)] == [("look", '{"at": "世"}')]
    assert reader.message["content"] == ""


def test_names_are_the_engines_settings() -> None:
    settings_ = {"tool_call_parser": "qwen", "reasoning_parser": "qwen3"}
    assert parser_names(EngineSettings(device="cpu", sglang=settings_)) == ParserNames("qwen", "qwen3", grammar=False)
    assert parser_names(EngineSettings()) == ParserNames()
    assert parser_names(EngineSettings(device="cuda")) == ParserNames(grammar=True)
    assert parser_names(EngineSettings(device="cpu", sglang={"grammar_backend": "xgrammar"})) == ParserNames(
        grammar=True
    )
