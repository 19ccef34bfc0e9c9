"""Test what the parsers of a run's model need of requests and engines, and the ids of their calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sglang.srt import parser
from sglang.srt.function_call.core_types import ToolCallItem

from schemas.errors import MissingPart
from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField, DialectName
from serve_apps.rollouts.agents.canonical import calls_of
from serve_apps.rollouts.agents.parsing import ParserNames, Parsers
from tests.agents.byte_tokenizer import END
from tests.agents.test_turn_reader import LOOK, PLAIN, QWEN, TOKENIZER, WITH_TOOLS, fed, ids

EOS = int(TOKENIZER.eos_token_id)
STRICT = {"type": "function", "function": LOOK["function"] | {"strict": True}}  # type: ignore[operator]


def request(**more: Any) -> AgentRequest:
    return AgentRequest(DialectName.CHAT, "m", **more)


def test_a_call_is_constrained_where_one_has_to_be() -> None:
    assert QWEN.constraint(request()) == {}
    assert QWEN.constraint(request(tools=(LOOK,), tool_choice="none")) == {}
    assert QWEN.constraint(request(tools=(STRICT,), tool_choice="none")) == {}
    assert Parsers(ParserNames("qwen"), TOKENIZER).constraint(request(tools=(LOOK,), tool_choice="required")) == {}
    for request_ in (
        request(tools=(STRICT,)),
        request(tools=(LOOK, STRICT)),
        request(tools=(LOOK,), tool_choice="look"),
    ):
        ((kind, value),) = QWEN.constraint(request_).items()
        assert kind == "structural_tag"
        assert [set(each) for each in json.loads(value)["structures"]] == [{"begin", "schema", "end"}] * len(
            request_.tools
        )
    with pytest.raises(BadField) as error:
        QWEN.constraint(request(tools=(LOOK,), tool_choice="required", sampling={"regex": "a"}))
    assert error.value.field == "tool_choice"
    assert QWEN.constraint(request(tools=(LOOK,), sampling={"regex": "a"})) == {}


@pytest.mark.parametrize("parallel", [True, False])
def test_how_many_calls_an_answer_has_is_in_its_constraint(parallel: bool) -> None:
    parsers = Parsers(ParserNames("pythonic", grammar=True), TOKENIZER)
    ((_, value),) = parsers.constraint(request(tools=(LOOK,), tool_choice="required", parallel=parallel)).items()
    assert ("maxItems" in value) is not parallel


@pytest.mark.parametrize(
    ("dialect", "sampling", "field"),
    [
        (DialectName.CHAT, "json_schema", "response_format"),
        (DialectName.RESPONSES, "json_schema", "text.format"),
        (DialectName.MESSAGES, "json_schema", "output_config.format"),
        (DialectName.GENERATE, "regex", "sampling_params.regex"),
    ],
)
def test_a_shape_needs_engines_with_grammars(dialect: DialectName, sampling: str, field: str) -> None:
    shaped = AgentRequest(dialect, "m", sampling={"temperature": 1, sampling: "x"})
    with pytest.raises(BadField) as error:
        PLAIN.check(shaped)
    assert error.value.field == field
    QWEN.check(shaped)


def test_tools_need_a_parser() -> None:
    for request_ in (request(tools=(LOOK,)), request(tools=(LOOK,), tool_choice="required")):
        with pytest.raises(BadField) as error:
            PLAIN.check(request_)
        assert error.value.field == "tools"
        QWEN.check(request_)
    PLAIN.check(request(tools=(LOOK,), tool_choice="none"))
    PLAIN.check(request())
    only = Parsers(ParserNames("qwen"), TOKENIZER)
    only.check(request(tools=(LOOK,), tool_choice="none"))
    for choice in ("required", "look"):
        with pytest.raises(BadField) as error:
            only.check(request(tools=(LOOK,), tool_choice=choice))
        assert error.value.field == "tool_choice"


CALL = f'<tool_call>\n{{"name": "look", "arguments": {{}}}}\n</tool_call>{END}'


def called(request_: AgentRequest, text: str = CALL, parsers: Parsers = QWEN) -> int:
    return len(calls_of(fed(parsers.reader(request_, "t", []), ids(text), [9])[1].message))


def test_calls_are_read_where_tools_were_given() -> None:
    assert called(WITH_TOOLS) == 1
    assert called(request(tools=(LOOK,), tool_choice="none")) == 0
    assert called(request()) == 0
    assert called(request(tools=(LOOK,)), parsers=PLAIN) == 0
    assert called(AgentRequest(DialectName.GENERATE, "", tools=(LOOK,))) == 0


@pytest.mark.parametrize(
    ("parsers", "more", "skips"),
    [
        (PLAIN, {}, True),
        (PLAIN, {"skip_special": False}, False),
        (QWEN, {}, True),
        (QWEN, {"tools": (LOOK,)}, False),
        (QWEN, {"tools": (LOOK,), "skip_special": True}, True),
        (QWEN, {"tools": (LOOK,), "tool_choice": "none"}, True),
        (Parsers(ParserNames(reasoning="gpt-oss"), TOKENIZER), {}, False),
    ],
)
def test_special_tokens_are_read_where_a_parser_needs_them(parsers: Parsers, more: dict[str, Any], skips: bool) -> None:
    reader = parsers.reader(request(**more), "t", [])
    assert reader._detokenizer.add([EOS, *ids("a")]) == ("a" if skips else f"{END}a")


def test_a_call_s_id_is_of_its_turn_and_place() -> None:
    def named(turn: str, text: str) -> list[str]:
        reader = fed(QWEN.reader(WITH_TOOLS, turn, []), ids(text), [9])[1]
        return [call.id for call in calls_of(reader.message)]

    two = CALL.removesuffix(END) + "\n" + CALL
    (first,), (other,) = named("s.1", CALL), named("s.2", CALL)
    assert first != other
    assert named("s.1", CALL) == [first]
    assert named("s.1", two)[0] == first
    assert len(set(named("s.1", two))) == 2
    assert (first.startswith("call_"), len(first)) == (True, 29)


@pytest.mark.parametrize(("kimi", "form"), [("kimi_k2", "functions.look:{}"), ("kimi_k3", "look:{}")])
def test_calls_of_kimi_are_numbered_through_the_conversation(kimi: str, form: str) -> None:
    before = {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}, {"id": "b"}]}
    messages = ({"role": "user", "content": "hm"}, before, before)
    reader = Parsers(ParserNames(kimi), TOKENIZER).reader(request(tools=(LOOK,), messages=messages), "t", [])
    items = [ToolCallItem(tool_index=at, name="look", parameters="{}") for at in range(2)]
    reader._parsed._tool_parser.parse_stream_chunk = lambda text: ("", [items.pop(0)] if items else [])
    assert [call.id for call in calls_of(fed(reader, ids("abc" + END), [1])[1].message)] == [
        form.format(4),
        form.format(5),
    ]


@pytest.mark.parametrize(
    ("config", "more"), [({"eos_token_id": 5}, [5]), ({"eos_token_id": [5, 6]}, [5, 6]), ({}, []), (None, [])]
)
def test_what_ends_an_answer_is_the_model_s(tmp_path: Path, config: Any, more: list[int]) -> None:
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    parsers = Parsers(ParserNames(), TOKENIZER, tmp_path)
    for token in (EOS, 5, 6):
        reader = fed(parsers.reader(request(), "t", []), [*ids("a"), token], [])[1]
        assert reader.matched == (token if token in (EOS, *more) else None)
    assert fed(PLAIN.reader(request(), "t", []), [5], [])[1].matched is None


class Detection(ModuleType):
    """Play SGLang's detection of a template's parsers. The module itself needs more than is installed for tests."""

    names_: tuple[str | None, str | None] = ("qwen", "qwen3")

    def detect_reasoning_pattern(self, template: str) -> tuple[bool, str]:
        assert template == TOKENIZER.chat_template
        return True, "toggle"

    def detect_tool_call_parser(self, template: str, tokenizer: Any, toggle: str, always: bool) -> str | None:
        assert (tokenizer, toggle, always) == (TOKENIZER, "toggle", True)
        return self.names_[0]

    def detect_reasoning_parser(self, template: str, tokenizer: Any, toggle: str, always: bool) -> str | None:
        assert (tokenizer, toggle, always) == (TOKENIZER, "toggle", True)
        return self.names_[1]


@pytest.fixture
def detection(monkeypatch: pytest.MonkeyPatch) -> Detection:
    module = Detection("sglang.srt.parser.template_detection")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(parser, "template_detection", module, raising=False)
    return module


@pytest.mark.parametrize(
    ("names", "detected", "used"),
    [
        (("auto", "auto"), ("qwen", "qwen3"), ("qwen", "qwen3")),
        (("auto", ""), ("qwen", "qwen3"), ("qwen", "")),
        (("", "auto"), ("qwen", "qwen3"), ("", "qwen3")),
        (("llama3", "auto"), ("qwen", "qwen3"), ("llama3", "qwen3")),
        (("auto", "deepseek-r1"), ("qwen", "qwen3"), ("qwen", "deepseek-r1")),
        (("auto", "auto"), (None, None), ("", "")),
    ],
)
def test_parsers_are_found_by_the_template(
    detection: Detection, names: tuple[str, str], detected: tuple[str | None, str | None], used: tuple[str, str]
) -> None:
    detection.names_ = detected
    parsers = Parsers(ParserNames(*names, grammar=True), TOKENIZER)
    assert parsers._names == ParserNames(*used, grammar=True)


def test_parsers_that_are_not_all_here_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang.srt.function_call.parser_names", None)
    for names in (ParserNames("qwen"), ParserNames(reasoning="qwen3")):
        with pytest.raises(MissingPart):
            Parsers(names, TOKENIZER)
    Parsers(ParserNames(), TOKENIZER)


def test_reasoning_is_looked_for_at_the_end_of_the_prompt() -> None:
    """A mark far before it is of another answer."""
    begun = "<think>" + "\n" * 40
    for prompt, thought in (("<think>\n", "yes"), (begun, None), ("</think>\n", None), (" ", None)):
        reader = fed(QWEN.reader(request(), "t", ids(prompt)), ids(f"yes{END}"), [2], StopReason.STOP)[1]
        assert reader.message.get("reasoning_content") == thought
