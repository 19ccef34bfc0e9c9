"""Hostile requests: each is read to an `AgentRequest` that can be answered, or its wrong field is named."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import Answer, BadField, Content, DialectName, Reasoning
from serve_apps.rollouts.agents.canonical import Call, assistant
from serve_apps.rollouts.agents.dialects import DIALECTS
from serve_apps.rollouts.agents.dialects.fields import Use
from tests.agents.test_reading import MINIMAL, TABLES, TOOLS, USER, Json, refused
from tests.agents.whole import read_whole

_plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
_json = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
_WORDS = [
    "type",
    "role",
    "content",
    "text",
    "id",
    "name",
    "function",
    "arguments",
    "tool_calls",
    "tool_call_id",
    "call_id",
    "tool_use",
    "tool_result",
    "thinking",
    "signature",
    "summary",
    "output",
    "encrypted_content",
    "user",
    "assistant",
    "system",
    "tool",
    "reasoning",
    "message",
    "function_call",
    "input_text",
    "function_call_output",
    "output_text",
    "input_schema",
    "parameters",
    "format",
    "json_schema",
    "schema",
    "json_object",
    "effort",
    "custom",
    "any",
    "required",
    "refusal",
    "auto",
    "include_usage",
    "display",
    "omitted",
    "reasoning_text",
    "summary_text",
]
_likely = st.recursive(
    _plain | st.sampled_from(_WORDS),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=6),
    max_leaves=25,
)


def only_asked(name: DialectName, body: bytes) -> None:
    """Whatever is read can be kept in a log, and answered."""
    dialect = DIALECTS[name]
    try:
        request = read_whole(dialect, body)
    except BadField:
        return
    msgspec.msgpack.encode([request.messages, request.tools, request.sampling, request.template, request.body])
    assert request.messages or request.tokens or request.text
    reply = Answer(
        "t", 1, assistant("a", "b", [Call("c", "d", "{}")]), StopReason.STOP, "a", 1, (1,), (0.0,), pieces=(b"a",)
    )
    assert json.loads(msgspec.json.encode(dialect.whole(request, reply)))
    encoder = dialect.stream(request, "t", 1)
    assert encoder.begin() + encoder.part(Reasoning("b")) + encoder.part(Content("a", (1,), (0.0,), (b"a",)))
    assert encoder.end(reply)


@pytest.mark.parametrize("name", DialectName)
@given(st.binary() | st.text().map(str.encode) | _json.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=60)
def test_any_bytes(name: DialectName, body: bytes) -> None:
    only_asked(name, body)


@pytest.mark.parametrize("name", DialectName)
@given(data=st.data())
@settings(max_examples=150)
def test_any_value_of_any_field(name: DialectName, data: st.DataObject) -> None:
    body = MINIMAL[name] | data.draw(
        st.dictionaries(st.sampled_from(sorted(TABLES[name])), _likely | _json, max_size=3)
    )
    only_asked(name, json.dumps(body).encode())


@pytest.mark.parametrize("name", DialectName)
@given(value=_likely.filter(lambda value: value is not None))
@settings(max_examples=20)
def test_refused_fields_are_refused_with_any_value(name: DialectName, value: Any) -> None:
    for field, rule in TABLES[name].items():
        if rule.use is Use.REFUSED:
            assert refused(name, **{field: value}).field in (field, "")


def rich(name: DialectName) -> Json:
    """A request with much in it."""
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    if name is DialectName.CHAT:
        assistant = {"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [call], "name": "x"}
        tool = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "a"}]}
        shape = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
        more = {"tool_choice": {"type": "function", "function": {"name": "look"}}, "response_format": shape}
        more |= {"stream_options": {"include_usage": True}, "messages": [USER, assistant, tool], "logprobs": True}
    elif name is DialectName.RESPONSES:
        thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}], "content": [], "id": "r"}
        output = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
        called = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        tool = {"type": "function_call_output", "call_id": "c1", "output": "x"}
        more = {"input": [USER, thought, output, called, tool], "tool_choice": {"type": "function", "name": "look"}}
        more |= {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"]}
        more |= {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"}}
    elif name is DialectName.MESSAGES:
        blocks = [{"type": "thinking", "thinking": "", "signature": "text:YQ=="}, {"type": "text", "text": "a"}]
        assistant = {
            "role": "assistant",
            "content": [*blocks, {"type": "tool_use", "id": "c1", "name": "look", "input": {}}],
        }
        result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a"}]}
        more = {"messages": [USER, assistant, {"role": "user", "content": [result]}], "thinking": {"type": "adaptive"}}
        more |= {"tool_choice": {"type": "tool", "name": "look"}, "system": [{"type": "text", "text": "s"}]}
        more |= {"output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}}}
    else:
        more = {"sampling_params": {"max_new_tokens": 3, "stop": ["a"]}, "return_logprob": True, "rid": "r"}
    return MINIMAL[name] | more | ({"tools": TOOLS[name]} if name in TOOLS else {})


@pytest.mark.parametrize("name", DialectName)
def test_rich_request_is_read(name: DialectName) -> None:
    assert read_whole(DIALECTS[name], json.dumps(rich(name)).encode())


@pytest.mark.parametrize("name", DialectName)
@given(data=st.data())
@settings(max_examples=250)
def test_any_value_anywhere(name: DialectName, data: st.DataObject) -> None:
    body: Any = json.loads(json.dumps(rich(name)))
    holder, depth = body, data.draw(st.integers(1, 6))
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        depth -= 1
        if depth and isinstance(holder[key], dict | list) and holder[key]:
            holder = holder[key]
            continue
        if data.draw(st.booleans()):
            holder[key] = data.draw(_plain | st.sampled_from(_WORDS) | _likely)
        else:
            del holder[key]
        break
    only_asked(name, json.dumps(body).encode())
