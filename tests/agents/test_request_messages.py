"""Test the messages of a request in each dialect: the result of every kind of item, and the field of each error."""

from __future__ import annotations

from typing import Any

import pytest

from serve_apps.rollouts.agents.agent_request import DialectName
from serve_apps.rollouts.agents.canonical import Call, Conversation, assistant, canonical_json, carry, leading_system
from tests.agents.test_reading import USER, Json, read, refused

CHAT, RESPONSES, MESSAGES, _ = DialectName
CALLED = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def chat(*messages: Json) -> tuple[Json, ...]:
    return read(CHAT, messages=[*messages]).messages


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"role": "user", "content": "a", "name": "bob"}, {"role": "user", "content": "a", "name": "bob"}),
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
        ({"role": "user", "content": "a", "name": None}, {"role": "user", "content": "a"}),
        ({"role": "system", "content": "a", "name": "s"}, {"role": "system", "content": "a", "name": "s"}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "tool", "tool_call_id": "c", "content": "a"}, {"role": "tool", "tool_call_id": "c", "content": "a"}),
        ({"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}], "name": "look"},
         {"role": "tool", "tool_call_id": "c", "content": "a", "name": "look"}),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
         {"role": "user", "content": "a\nb"}),
    ],
)  # fmt: skip
def test_chat_messages(fields: Json, message: Json) -> None:
    assert chat(USER, fields) == (USER, message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"content": None, "tool_calls": [CALLED]}, {"content": "", "tool_calls": [CALLED]}),
        ({"content": "a", "tool_calls": []}, {"content": "a"}),
        ({"content": "a", "reasoning_content": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": "a", "reasoning": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": "a", "reasoning": "x", "reasoning_content": "hm"}, {"content": "a", "reasoning_content": "hm"}),
        ({"content": None, "refusal": "no"}, {"content": "no"}),
        ({"content": "a", "refusal": "no"}, {"content": "a"}),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"content": "ab"}),
        ({"content": "a", "audio": None, "function_call": None}, {"content": "a"}),
    ],
)
def test_chat_answers(fields: Json, message: Json) -> None:
    assert chat(USER, {"role": "assistant"} | fields) == (USER, {"role": "assistant"} | message)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": "assistant", "content": "a", "function_call": {"name": "f"}}, "function_call"),
        ({"role": "assistant", "content": "a", "tool_calls": [1]}, "tool_calls.0"),
        ({"role": "assistant", "tool_calls": [CALLED, CALLED | {"type": "custom"}]}, "tool_calls.1.type"),
        ({"role": "assistant", "tool_calls": [CALLED | {"id": None}]}, "tool_calls.0.id"),
        ({"role": "assistant", "tool_calls": [CALLED | {"function": {"name": "f"}}]},
         "tool_calls.0.function.arguments"),
        ({"role": "assistant", "tool_calls": [CALLED | {"function": {"arguments": ""}}]},
         "tool_calls.0.function.name"),
        ({"role": "assistant", "content": "a", "reasoning_content": 1}, "reasoning_content"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "content.0.text"),
        ({"role": "user", "content": "a", "name": 1}, "name"),
        ({"role": "tool", "content": "a"}, "tool_call_id"),
        ({"content": "a"}, "role"),
        ({"role": "function", "content": "a"}, "role"),
    ],
)  # fmt: skip
def test_chat_messages_that_are_none(fields: Json, field: str) -> None:
    assert refused(CHAT, messages=[USER, fields]).field == f"messages.1.{field}"


def test_a_call_of_a_chat_needs_no_type() -> None:
    call = {key: value for key, value in CALLED.items() if key != "type"}
    assert chat(USER, {"role": "assistant", "tool_calls": [call]})[1]["tool_calls"] == [CALLED]


TEXT = {"type": "text", "text": "a"}
USE = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}


def claude(*messages: Json, **more: Any) -> tuple[Json, ...]:
    return read(MESSAGES, messages=[*messages], **more).messages


def test_messages_of_the_system() -> None:
    assert claude(USER, system="Be kind.")[0] == {"role": "system", "content": "Be kind."}
    assert claude(USER, system="") == claude(USER, system=None) == claude(USER, system=[]) == (USER,)
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert claude({"role": "system", "content": "c"}, USER, system=two)[0]["content"] == "a\nb\nc"
    assert claude(USER, {"role": "system", "content": [TEXT]}, USER)[1] == {"role": "system", "content": "a"}
    assert refused(MESSAGES, system=[TEXT, {"type": "image"}]).field == "system.1.0.type"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a", {"content": "a"}),
        ([TEXT, TEXT], {"content": "aa"}),
        ([TEXT, USE], {"content": "a", "tool_calls": [CALLED]}),
        ([{"type": "thinking", "thinking": "hm", "signature": "x"}, TEXT], {"content": "a", "reasoning_content": "hm"}),
        ([{"type": "thinking", "thinking": "", "signature": carry("hm")}, TEXT],
         {"content": "a", "reasoning_content": "hm"}),
        ([{"type": "thinking", "thinking": "h"}, {"type": "thinking", "thinking": "m"}, TEXT],
         {"content": "a", "reasoning_content": "hm"}),
    ],
)  # fmt: skip
def test_answers_of_messages(content: Any, message: Json) -> None:
    assert claude(USER, {"role": "assistant", "content": content}, USER)[1] == {"role": "assistant"} | message


@pytest.mark.parametrize(
    ("content", "messages"),
    [
        ([TEXT, TEXT], [{"role": "user", "content": "a\na"}]),
        ([], [{"role": "user", "content": ""}]),
        ([TEXT, RESULT, TEXT], [
            {"role": "user", "content": "a"},
            {"role": "tool", "tool_call_id": "c", "content": "a"},
            {"role": "user", "content": "a"},
        ]),
        ([{"type": "tool_result", "tool_use_id": "c"}], [{"role": "tool", "tool_call_id": "c", "content": ""}]),
    ],
)  # fmt: skip
def test_what_a_user_of_messages_says(content: Any, messages: list[Json]) -> None:
    assert claude({"role": "user", "content": content}) == tuple(messages)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"role": "user"}, "content"),
        ({"role": "user", "content": 1}, "content"),
        ({"role": "user", "content": [1]}, "content.0"),
        ({"role": "user", "content": [TEXT, {"type": "text"}]}, "content.1.text"),
        ({"role": "user", "content": [{"type": "tool_result", "content": "a"}]}, "content.0.tool_use_id"),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]},
         "content.0.content.0.type"),
        ({"role": "user", "content": [USE]}, "content.0.type"),
        ({"role": "assistant", "content": [USE | {"input": "{}"}]}, "content.0.input"),
        ({"role": "assistant", "content": [USE | {"id": None}]}, "content.0.id"),
        ({"role": "assistant", "content": [USE | {"name": 1}]}, "content.0.name"),
        ({"role": "assistant", "content": [RESULT]}, "content.0.type"),
        ({"role": "robot", "content": "a"}, "role"),
    ],
)  # fmt: skip
def test_messages_that_are_none(fields: Json, field: str) -> None:
    assert refused(MESSAGES, messages=[USER, fields, USER]).field == f"messages.1.{field}"


def test_no_answer_is_continued() -> None:
    assert refused(MESSAGES, messages=[USER, {"role": "assistant", "content": "a"}]).field == "messages.1.role"
    assert refused(MESSAGES, messages=[]).field == "messages"
    assert refused(MESSAGES, messages=[], system="Be kind.").field == "messages"


REASONED = {"type": "reasoning", "summary": []}
FUNCTION_CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "a"}


def responses(*items: Json, **more: Any) -> tuple[Json, ...]:
    return read(RESPONSES, input=[*items], **more).messages


def test_input_of_responses() -> None:
    assert read(RESPONSES, input="hi").messages == (USER,)
    assert read(RESPONSES, input="hi", instructions="").messages == (USER,)
    for role, is_called in (("user", "user"), ("system", "system"), ("developer", "system")):
        item = {"type": "message", "role": role, "content": [{"type": "input_text", "text": "a"}]}
        assert responses(USER, item)[1] == {"role": is_called, "content": "a"}
    assert responses({"role": "developer", "content": "b"}, USER, instructions="a")[0]["content"] == "a\nb"
    assert responses(OUTPUT)[0] == {"role": "tool", "tool_call_id": "c", "content": "a"}


@pytest.mark.parametrize(
    ("item", "reasoning"),
    [
        ({"content": [{"type": "reasoning_text", "text": "h"}, {"type": "reasoning_text", "text": "m"}]}, "hm"),
        ({"summary": [{"type": "summary_text", "text": "hm"}]}, "hm"),
        ({"content": [{"text": "hm"}], "summary": [{"text": "x"}], "encrypted_content": carry("y")}, "hm"),
        ({"encrypted_content": carry("hm")}, "hm"),
        ({"encrypted_content": "gAAAA-of-another-server"}, None),
        ({"encrypted_content": "text:%%%"}, None),
        ({}, None),
    ],
)
def test_reasoning_comes_from_wherever_it_was_kept(item: Json, reasoning: str | None) -> None:
    (_, answer) = responses(USER, REASONED | item, {"role": "assistant", "content": "a"})
    assert answer.get("reasoning_content") == reasoning


def test_items_of_one_answer_are_one_message() -> None:
    item = {"type": "message", "role": "assistant", "content": "a"}
    assert responses(FUNCTION_CALL, FUNCTION_CALL | {"call_id": "d"}, OUTPUT) == (
        assistant("", "", [Call("c", "look", "{}"), Call("d", "look", "{}")]),
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    )
    assert [message["content"] for message in responses(USER, item, item, USER)] == ["hi", "a", "a", "hi"]
    assert [message["content"] for message in responses(USER, item, FUNCTION_CALL, item)] == ["hi", "aa"]
    assert [message["role"] for message in responses(item, REASONED, OUTPUT, item)] == [
        "assistant",
        "tool",
        "assistant",
    ]


@pytest.mark.parametrize(
    ("item", "field"),
    [
        ({"role": "robot", "content": "a"}, "role"),
        ({"content": "a"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "assistant", "content": 1}, "content"),
        ({"type": "web_search_call", "id": "w"}, "type"),
        ({"type": "item_reference", "id": "w"}, "type"),
        (FUNCTION_CALL | {"call_id": None}, "call_id"),
        (FUNCTION_CALL | {"name": None}, "name"),
        (FUNCTION_CALL | {"arguments": {}}, "arguments"),
        (OUTPUT | {"call_id": 1}, "call_id"),
        (OUTPUT | {"output": 1}, "output"),
        (REASONED | {"content": [1]}, "content.0"),
        (REASONED | {"summary": [{"text": 1}]}, "summary.0.text"),
        (REASONED | {"encrypted_content": 1}, "encrypted_content"),
    ],
)
def test_items_that_are_none(item: Json, field: str) -> None:
    assert refused(RESPONSES, input=[USER, item]).field == f"input.1.{field}"
    assert refused(RESPONSES, input=[USER, 1]).field == "input.1"


def test_an_api_without_items_has_no_conversation() -> None:
    with pytest.raises(NotImplementedError):
        Conversation().take([({}, "items.0")])
    assert (Conversation([USER]).messages, Conversation().is_open) == ([USER], False)


@pytest.mark.parametrize(("roles", "heads"), [("u", 0), ("su", 1), ("ssu", 1), ("sssusu", 1), ("sus", 1), ("ss", 1)])
def test_the_system_is_one_message_at_the_head(roles: str, heads: int) -> None:
    named = {"s": "system", "u": "user"}
    messages = [{"role": named[role], "content": str(at)} for at, role in enumerate(roles)]
    leading, count = leading_system(messages), len(roles) - len(roles.lstrip("s"))
    assert len(leading) == len(roles) - max(0, count - 1)
    assert list(leading[heads:]) == messages[count:]
    if count:
        assert leading[0] == {"role": "system", "content": "\n".join(map(str, range(count)))}


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('{"a": 1.0, "b": [2.0, 2.5], "c": true}', '{"a": 1, "b": [2, 2.5], "c": true}'),
        ("9007199254740991.0", "9007199254740991"),
        ("-9007199254740991.0", "-9007199254740991"),
        ("9007199254740992.0", "9007199254740992.0"),
        ("1e300", "1e+300"),
        ("NaN", "NaN"),
        ('{"a": ', '{"a": '),
        ('"\\u00e9"', '"é"'),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_as_a_client_gives_them_back(text: str, plain: str) -> None:
    assert canonical_json(text) == plain
