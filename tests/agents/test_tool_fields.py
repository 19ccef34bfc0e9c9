"""Tools, the choice among them, the shape of an answer and how much it thinks, as requests of each dialect say it."""

from __future__ import annotations

from typing import Any

import pytest

from serve_apps.rollouts.agents.agent_request import DialectName
from tests.agents.test_reading import FUNCTION, TALKING, TOOLS, Json, read, refused

CHAT, RESPONSES, MESSAGES, _ = DialectName
SCHEMA: Json = {"type": "object", "properties": {"at": {"type": "integer"}}}


def tool_of(dialect: DialectName, **function: Any) -> Json:
    """A tool in that dialect."""
    if dialect is CHAT:
        return {"type": "function", "function": function}
    if dialect is RESPONSES:
        return {"type": "function"} | function
    return {("input_schema" if key == "parameters" else key): value for key, value in function.items()}


@pytest.mark.parametrize("name", TALKING)
def test_a_tool_is_what_was_given(name: DialectName) -> None:
    whole = {"name": "look", "description": "Look.", "parameters": SCHEMA, "strict": True}
    bare = {"name": "go", "parameters": {"type": "object", "properties": {}}}
    tools = read(name, tools=[tool_of(name, **whole), tool_of(name, name="go", description="", strict=False)]).tools
    assert tools == ({"type": "function", "function": whole}, {"type": "function", "function": bare})


@pytest.mark.parametrize("name", TALKING)
def test_a_tool_that_is_none(name: DialectName) -> None:
    under = "tools.0.function" if name is CHAT else "tools.0"
    schema = "input_schema" if name is MESSAGES else "parameters"
    for wrong, field in (
        (tool_of(name, name=""), f"{under}.name"),
        (tool_of(name, description="Look."), f"{under}.name"),
        (tool_of(name, name="a", parameters=[]), f"{under}.{schema}"),
        (tool_of(name, name="a", description=1), f"{under}.description"),
        (tool_of(name, name="a", strict=1), f"{under}.strict"),
        (tool_of(name, name="a") | {"type": "shell"}, "tools.0.type"),
        (1, "tools.0"),
    ):
        assert refused(name, tools=[wrong]).field == field
    assert refused(name, tools=[TOOLS[name][0], 1]).field == "tools.1"


def test_claude_s_own_tools_are_custom() -> None:
    assert read(MESSAGES, tools=[TOOLS[MESSAGES][0] | {"type": "custom"}]).tools == read(CHAT, tools=TOOLS[CHAT]).tools


CHOICES: list[tuple[DialectName, Any, str]] = [
    *((name, word, word) for name in (CHAT, RESPONSES) for word in ("auto", "none", "required")),
    (CHAT, {"type": "function", "function": {"name": "look"}}, "look"),
    (RESPONSES, {"type": "function", "name": "look"}, "look"),
    (MESSAGES, {"type": "auto"}, "auto"),
    (MESSAGES, {"type": "none"}, "none"),
    (MESSAGES, {"type": "any"}, "required"),
    (MESSAGES, {"type": "tool", "name": "look"}, "look"),
]


@pytest.mark.parametrize(("name", "choice_field", "choice"), CHOICES)
def test_a_choice(name: DialectName, choice_field: Any, choice: str) -> None:
    assert read(name, tools=TOOLS[name], tool_choice=choice_field).tool_choice == choice
    if choice in ("auto", "none"):
        assert read(name, tool_choice=choice_field).tool_choice == choice
    else:
        assert refused(name, tool_choice=choice_field).field.startswith("tool_choice")


def test_a_choice_among_several_tools() -> None:
    tools = [*TOOLS[CHAT], {"type": "function", "function": FUNCTION | {"name": "go"}}]
    for named in ("look", "go"):
        choice = {"type": "function", "function": {"name": named}}
        assert read(CHAT, tools=tools, tool_choice=choice).tool_choice == named


@pytest.mark.parametrize(
    ("name", "choice_field", "field"),
    [
        (CHAT, "sometimes", "tool_choice"),
        (CHAT, "look", "tool_choice"),
        (CHAT, {"type": "custom", "function": {"name": "look"}}, "tool_choice.type"),
        (CHAT, {"type": "function", "function": {"name": "go"}}, "tool_choice.function.name"),
        (CHAT, {"type": "function", "function": "look"}, "tool_choice.function"),
        (CHAT, {"type": "function", "function": {}}, "tool_choice.function.name"),
        (CHAT, 1, "tool_choice"),
        (RESPONSES, {"type": "function", "name": "go"}, "tool_choice.name"),
        (RESPONSES, {"type": "file_search"}, "tool_choice.type"),
        (MESSAGES, {"type": "tool", "name": "go"}, "tool_choice.name"),
        (MESSAGES, {"type": "tool"}, "tool_choice.name"),
        (MESSAGES, {"type": "some"}, "tool_choice.type"),
        (MESSAGES, {}, "tool_choice.type"),
    ],
)
def test_a_choice_that_is_none(name: DialectName, choice_field: Any, field: str) -> None:
    assert refused(name, tools=TOOLS[name], tool_choice=choice_field).field == field


def test_one_call_at_a_time() -> None:
    assert not read(CHAT, parallel_tool_calls=False).parallel
    assert not read(RESPONSES, parallel_tool_calls=False).parallel
    tool_choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not read(MESSAGES, tool_choice=tool_choice).parallel
    assert read(MESSAGES, tool_choice=tool_choice | {"disable_parallel_tool_use": False}).parallel


OFF = {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (CHAT, {"reasoning_effort": "{}"}),
        (CHAT, {"reasoning": {"effort": "{}"}}),
        (RESPONSES, {"reasoning": {"effort": "{}"}}),
        (MESSAGES, {"output_config": {"effort": "{}"}}),
    ],
)
@pytest.mark.parametrize(("effort", "more"), [("low", {}), ("none", OFF)])
def test_how_much_it_thinks(name: DialectName, fields: Json, effort: str, more: Json) -> None:
    def filled(value: Any) -> Any:
        return {key: filled(part) for key, part in value.items()} if isinstance(value, dict) else effort

    assert read(name, **filled(fields)).template == {"reasoning_effort": effort} | more


@pytest.mark.parametrize(
    ("name", "fields", "template"),
    [
        (CHAT, {"verbosity": "low"}, {"verbosity": "low"}),
        (CHAT, {"reasoning_effort": "low", "reasoning": {"effort": "high"}}, {"reasoning_effort": "low"}),
        (RESPONSES, {"text": {"verbosity": "low"}}, {"verbosity": "low"}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 9}}, {"enable_thinking": True, "thinking": True}),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, {"enable_thinking": True, "thinking": True}),
        (MESSAGES, {"thinking": {"type": "disabled"}}, OFF),
        (MESSAGES, {"thinking": {"display": "omitted"}}, {}),
        *((name, {"chat_template_kwargs": {"a": 1}}, {"a": 1}) for name in TALKING),
    ],
)
def test_what_the_template_is_given(name: DialectName, fields: Json, template: Json) -> None:
    assert read(name, **fields).template == template


def test_arguments_of_the_template_s_own_come_last() -> None:
    own = {"reasoning_effort": "high", "thinking": False}
    assert read(CHAT, reasoning_effort="low", chat_template_kwargs=own).template == own
    fields = {"thinking": {"type": "enabled"}, "output_config": {"effort": "low"}}
    assert read(MESSAGES, chat_template_kwargs=own, **fields).template == own | {"enable_thinking": True}


@pytest.mark.parametrize(
    ("name", "fields", "field"),
    [
        (CHAT, {"response_format": {"type": "xml"}}, "response_format.type"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format.type"),
        (RESPONSES, {"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        (RESPONSES, {"text": {"verbosity": 1}}, "text.verbosity"),
        (RESPONSES, {"reasoning": {"effort": 1}}, "reasoning.effort"),
        (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": 1}}, "output_format.schema"),
        (MESSAGES, {"output_config": {"effort": 1}}, "output_config.effort"),
        (MESSAGES, {"thinking": {"type": "deep"}}, "thinking.type"),
        (MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
         "tool_choice.disable_parallel_tool_use"),
        (CHAT, {"reasoning": {"effort": 1}}, "reasoning.effort"),
    ],
)  # fmt: skip
def test_shapes_and_efforts_that_are_none(name: DialectName, fields: Json, field: str) -> None:
    assert refused(name, **fields).field == field


@pytest.mark.parametrize(
    ("name", "fields", "schema"),
    [
        (CHAT, {"response_format": {"type": "text"}}, None),
        (CHAT, {"response_format": {"type": "json_object"}}, '{"type":"object"}'),
        (RESPONSES, {"text": {"format": {"type": "text"}}}, None),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}, '{"type":"object"}'),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {"a": 1}}}}, '{"a":1}'),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": {"a": 1}}}, '{"a":1}'),
        (MESSAGES, {"output_format": {}}, None),
    ],
)
def test_shapes(name: DialectName, fields: Json, schema: str | None) -> None:
    assert read(name, **fields).sampling.get("json_schema") == schema


def test_an_answer_of_generate_has_one_shape() -> None:
    assert refused(DialectName.GENERATE, sampling_params={"regex": "a", "json_schema": "{}"}).field == "regex"


@pytest.mark.parametrize("name", TALKING)
def test_an_answer_has_one_shape(name: DialectName) -> None:
    assert refused(name, regex="a", ebnf="b").field == "ebnf"
    assert read(name, regex="a").sampling["regex"] == "a"
