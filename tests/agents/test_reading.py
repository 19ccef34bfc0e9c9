"""Reading a request gives an `AgentRequest` or names the wrong field, whatever a client sends."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from anthropic.types.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from transformers import PreTrainedTokenizerBase

from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField, DialectName
from serve_apps.rollouts.agents.dialects import DIALECTS, MESSAGES, chat, generate, messages, responses
from serve_apps.rollouts.agents.dialects.fields import Fields, Use
from serve_apps.rollouts.agents.turns import FROM_THE_RUN
from tests.agents.whole import read_whole

Json = dict[str, Any]
USER = {"role": "user", "content": "hi"}
MINIMAL: dict[DialectName, Json] = {
    DialectName.CHAT: {"model": "m", "messages": [USER]},
    DialectName.RESPONSES: {"model": "m", "input": [USER]},
    DialectName.MESSAGES: {"model": "m", "max_tokens": 8, "messages": [USER]},
    DialectName.GENERATE: {"text": "hi"},
}
TABLES: dict[DialectName, Fields] = {
    DialectName.CHAT: chat.FIELDS,
    DialectName.RESPONSES: responses.FIELDS,
    DialectName.MESSAGES: messages.FIELDS,
    DialectName.GENERATE: generate.FIELDS,
}
FUNCTION = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
TOOLS: dict[DialectName, list[Json]] = {
    DialectName.CHAT: [{"type": "function", "function": FUNCTION}],
    DialectName.RESPONSES: [{"type": "function", **FUNCTION}],
    DialectName.MESSAGES: [{"name": "look", "description": "Look.", "input_schema": FUNCTION["parameters"]}],
}
TALKING = [name for name in DialectName if name is not DialectName.GENERATE]


def read(name: DialectName, **more: Any) -> AgentRequest:
    return read_whole(DIALECTS[name], json.dumps(MINIMAL[name] | more).encode())


def refused(name: DialectName, **more: Any) -> BadField:
    with pytest.raises(BadField) as error:
        read(name, **more)
    return error.value


@pytest.mark.parametrize("name", TALKING)
def test_same_conversation_and_tools_in_every_dialect(name: DialectName) -> None:
    request = read(name, tools=TOOLS[name], temperature=0.5, top_p=0.9, top_k=4, min_p=0.1, seed=7)
    assert request.messages == ({"role": "user", "content": "hi"},)
    assert request.tools == ({"type": "function", "function": FUNCTION},)
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "sampling_seed": 7}
    assert {key: request.sampling[key] for key in sampling} == sampling


SAMPLED = [
    (DialectName.CHAT, {"max_tokens": 5}, {"max_new_tokens": 5}),
    (DialectName.CHAT, {"max_completion_tokens": 9, "max_tokens": 5}, {"max_new_tokens": 5}),
    (DialectName.CHAT, {"stop": "x", "frequency_penalty": 1, "presence_penalty": -1},
     {"stop": ["x"], "frequency_penalty": 1, "presence_penalty": -1}),
    (DialectName.CHAT, {"response_format": {"type": "json_object"}}, {"json_schema": '{"type":"object"}'}),
    (DialectName.CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}}}},
     {"json_schema": '{"a":1}'}),
    (DialectName.CHAT, {"temperature": None, "stop": None, "n": 1, "user": "u", "top_k": 0}, {"top_k": -1}),
    (DialectName.RESPONSES, {"max_output_tokens": 5, "text": {"format": {"type": "json_schema", "schema": {}}}},
     {"max_new_tokens": 5, "json_schema": "{}"}),
    (DialectName.MESSAGES,
     {"stop_sequences": ["a", "b"], "output_config": {"format": {"type": "json_schema", "schema": {}}}},
     {"max_new_tokens": 8, "stop": ["a", "b"], "json_schema": "{}"}),
    (DialectName.GENERATE, {"sampling_params": {"max_new_tokens": 3, "regex": "a+", "stop_token_ids": [1], "n": 1}},
     {"max_new_tokens": 3, "regex": "a+", "stop_token_ids": [1]}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "more", "sampling"), SAMPLED)
def test_sampling_has_names_of_sglang(name: DialectName, more: Json, sampling: Json) -> None:
    assert read(name, **more).sampling == sampling


REFUSED = [
    (DialectName.CHAT, {"n": 2}, "n"),
    (DialectName.CHAT, {"n": True}, "n"),
    (DialectName.CHAT, {"temperature": "hot"}, "temperature"),
    (DialectName.CHAT, {"temperature": 3}, "temperature"),
    (DialectName.CHAT, {"top_p": 0}, "top_p"),
    (DialectName.CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (DialectName.CHAT, {"store": True}, "store"),
    (DialectName.CHAT, {"stop": ["a", ""]}, "stop"),
    (DialectName.CHAT, {"stop": ["a", 1]}, "stop.1"),
    (DialectName.CHAT, {"logit_bias": {"5": 1}}, "logit_bias"),
    (DialectName.CHAT, {"nonsense": 1}, "nonsense"),
    (DialectName.CHAT, {"messages": []}, "messages"),
    (DialectName.CHAT, {"messages": [USER, {"role": "robot", "content": ""}]}, "messages.1.role"),
    (DialectName.CHAT, {"messages": [{"role": "user"}]}, "messages.0.content"),
    (DialectName.CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id"),
    (DialectName.CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a"}}]}]},
     "messages.0.content.0.type"),
    (DialectName.CHAT, {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "messages.0.audio"),
    (DialectName.CHAT, {"tools": [{"type": "custom", "custom": {}}]}, "tools.0.type"),
    (DialectName.CHAT, {"tool_choice": {"type": "function", "function": {"name": "go"}}},
     "tool_choice.function.name"),
    (DialectName.CHAT, {"tool_choice": "required"}, "tool_choice"),
    (DialectName.CHAT, {"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
    (DialectName.CHAT, {"model": None}, "model"),
    (DialectName.RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (DialectName.RESPONSES, {"conversation": "conv_1"}, "conversation"),
    (DialectName.RESPONSES, {"store": True}, "store"),
    (DialectName.RESPONSES, {"background": True}, "background"),
    (DialectName.RESPONSES, {"input": [{"type": "item_reference", "id": "rs_1"}]}, "input.0.type"),
    (DialectName.RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a"}]}]},
     "input.0.content.0.type"),
    (DialectName.RESPONSES, {"tools": [{"type": "web_search"}]}, "tools.0.type"),
    (DialectName.RESPONSES, {"input": []}, "input"),
    (DialectName.MESSAGES, {"max_tokens": None}, "max_tokens"),
    (DialectName.MESSAGES, {"messages": [USER, {"role": "assistant", "content": "I"}]}, "messages.1.role"),
    (DialectName.MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
    (DialectName.MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
     "messages.0.content.0.type"),
    (DialectName.MESSAGES, {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking"}]}, USER]},
     "messages.0.content.0.type"),
    (DialectName.MESSAGES, {"tool_choice": {"type": "tool", "name": "go"}}, "tool_choice.name"),
    (DialectName.MESSAGES, {"mcp_servers": []}, "mcp_servers"),
    (DialectName.GENERATE, {"text": ["a", "b"]}, "text"),
    (DialectName.GENERATE, {"input_ids": [1]}, "input_ids"),
    (DialectName.GENERATE, {"image_data": "http://a"}, "image_data"),
    (DialectName.GENERATE, {"sampling_params": {"n": 4}}, "sampling_params.n"),
    (DialectName.GENERATE, {"custom_logit_processor": "x"}, "custom_logit_processor"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "more", "field"), REFUSED)
def test_refused_by_name(name: DialectName, more: Json, field: str) -> None:
    error = refused(name, **more)
    assert error.field == field
    assert error.message


@pytest.mark.parametrize("name", DialectName)
@pytest.mark.parametrize(
    "body", [b"", b"[1]", b'"a"', b"{", b"\xff", b'{"a": 1e999}', b"[" * 5000, b'{"seed": 1%s}' % (b"0" * 40)]
)
def test_bodies_that_are_none(name: DialectName, body: bytes) -> None:
    with pytest.raises(BadField) as error:
        read_whole(DIALECTS[name], body)
    assert error.value.field == ""


def test_one_answer_is_one_message() -> None:
    items = [
        USER,
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "message", "role": "assistant", "content": "b"},
        {"type": "message", "role": "assistant", "content": "another"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "seen"}]},
    ]
    request = read(DialectName.RESPONSES, input=items, instructions="Be brief.")
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert request.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "ab", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "assistant", "content": "another"},
        {"role": "tool", "tool_call_id": "c1", "content": "seen"},
    )


def test_system_messages_at_the_head_are_one() -> None:
    messages = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b"}]},
        USER,
    ]
    assert read(DialectName.CHAT, messages=messages).messages[0] == {"role": "system", "content": "a\nb"}
    billing = {"type": "text", "text": "x-anthropic-billing-header: cch=1;"}
    system = [billing, {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    assert read(DialectName.MESSAGES, system=system).messages[0] == {"role": "system", "content": "a"}


def test_results_of_tools_are_messages_of_their_own() -> None:
    results = [
        {"type": "tool_result", "tool_use_id": f"c{n}", "content": content} for n, content in enumerate(["x", []])
    ]
    content = [*results, {"type": "text", "text": "and"}, {"type": "text", "text": "more"}]
    assert read(DialectName.MESSAGES, messages=[{"role": "user", "content": content}]).messages == (
        {"role": "tool", "tool_call_id": "c0", "content": "x"},
        {"role": "tool", "tool_call_id": "c1", "content": ""},
        {"role": "user", "content": "and\nmore"},
    )


def test_tokens_are_counted_without_a_limit() -> None:
    body = {key: value for key, value in MINIMAL[DialectName.MESSAGES].items() if key != "max_tokens"}
    assert read_whole(MESSAGES, json.dumps(body).encode(), MESSAGES.read_count).messages == (USER,)


def test_what_the_run_says_is_named() -> None:
    """The fields that are read and have no effect, since the trainer takes log-probs as the run draws tokens."""
    tables = [*TABLES.values(), generate.SAMPLING]
    assert {rule.sampling for table in tables for rule in table.values() if rule.use is Use.RUNS} == set(FROM_THE_RUN)


def test_every_field_of_the_clients_is_known() -> None:
    for table, params in (
        (chat.FIELDS, CompletionCreateParamsBase),
        (responses.FIELDS, ResponseCreateParamsBase),
        (messages.FIELDS, MessageCreateParamsBase),
    ):
        assert [name for name in params.__annotations__ if name not in table] == []


def test_what_claude_code_sends_is_read() -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    tool = {"name": "Bash", "description": "Run.", "input_schema": {"type": "object"}, "eager_input_streaming": True}
    request = read(
        DialectName.MESSAGES,
        system=[{"type": "text", "text": "You are an agent.", **cached}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "hi", **cached}]}],
        tools=[tool | cached],
        thinking={"type": "adaptive"},
        output_config={"effort": "medium"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "u"},
        stream=True,
    )
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert request.template == {"reasoning_effort": "medium", "enable_thinking": True, "thinking": True}


@pytest.mark.parametrize("name", TALKING)
def test_no_request_chooses_the_chat_template(name: DialectName) -> None:
    """It is code; nor any other argument of the call that renders a chat."""
    assert read(name, chat_template_kwargs={"enable_thinking": False}).template == {"enable_thinking": False}
    own = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters)
    for reserved in {*own, "messages"}:
        error = refused(name, chat_template_kwargs={reserved: "{{ 1 }}"})
        assert error.field == f"chat_template_kwargs.{reserved}"
