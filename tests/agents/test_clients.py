"""The clients that agents are written with, over loopback: OpenAI's and Anthropic's own, and plain HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel

from serve_apps.rollouts.agents.agent_request import AgentRequest, DialectName
from tests.agents.byte_tokenizer import END
from tests.agents.scripted_api import Scripted, obliging, served

Json = dict[str, Any]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
SCRIPT = f"<think>\nHm 世.\n</think>\n\nI look.\n{CALL}\n{CALL}{END}"
SAID = "Grüße, 世界 😀!"


def agent(request: AgentRequest) -> str:
    """Call a tool first, and then answer with its result."""
    if request.tools and not any(message["role"] == "tool" for message in request.messages):
        return SCRIPT
    return obliging(request)


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Scripted, str]]:
    scripted = Scripted(agent)
    with served(scripted) as url:
        yield scripted, url


@pytest.fixture
def scripted(server: tuple[Scripted, str]) -> Iterator[Scripted]:
    scripted_server = server[0]
    yield scripted_server
    scripted_server.fails_after, scripted_server.model = None, agent


@pytest.fixture
def chat(server: tuple[Scripted, str]) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server[1]}/v1", api_key="x", max_retries=0)


@pytest.fixture
def claude(server: tuple[Scripted, str]) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server[1], api_key="x", max_retries=0)


CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
ASKED: Any = [{"role": "user", "content": "Weather?"}]


@pytest.mark.parametrize("streams", [False, True])
def test_chat_with_tools(scripted: Scripted, chat: openai.OpenAI, streams: bool) -> None:
    if streams:
        with chat.chat.completions.stream(
            model="m", messages=ASKED, tools=CHAT_TOOLS, stream_options={"include_usage": True}
        ) as stream:
            kinds = {event.type for event in stream}
            done: Any = stream.get_final_completion()
        assert {"content.delta", "tool_calls.function.arguments.delta"} <= kinds
    else:
        done = chat.chat.completions.create(model="m", messages=ASKED, tools=CHAT_TOOLS)
    (choice,), last_answer = done.choices, scripted.answers[-1]
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{"city": "Zürich"}] * 2
    assert done.usage.completion_tokens == len(last_answer.tokens)
    results = [{"role": "tool", "tool_call_id": c.id, "content": "sun"} for c in choice.message.tool_calls]
    again = chat.chat.completions.create(model="m", messages=[*ASKED, choice.message, *results], tools=CHAT_TOOLS)
    assert again.choices[0].message.content == SAID
    assert again.choices[0].finish_reason == "stop"
    assert scripted.requests[-1].messages[1] == last_answer.message


def test_chat_stream_is_whole_text(chat: openai.OpenAI) -> None:
    stream = chat.chat.completions.create(model="m", messages=ASKED, stream=True, logprobs=True)
    chunks = list(stream)
    text = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(text) == SAID
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in text)
    entries = [
        entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert bytes(byte for entry in entries for byte in entry.bytes or ()) == f"{SAID}{END}".encode()
    whole = chat.chat.completions.create(model="m", messages=ASKED, logprobs=True).choices[0].logprobs
    assert whole is not None
    assert whole.content == entries


def test_structured_answers_are_parsed(chat: openai.OpenAI) -> None:
    class Trip(BaseModel):
        city: str
        days: int

    trip = Trip(city="Zürich", days=3)
    assert (
        chat.chat.completions.parse(model="m", messages=ASKED, response_format=Trip).choices[0].message.parsed == trip
    )
    assert chat.responses.parse(model="m", input="Go.", text_format=Trip).output_parsed == trip


RESPONSE_TOOLS: Any = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}]


@pytest.mark.parametrize("streams", [False, True])
def test_responses_with_tools(scripted: Scripted, chat: openai.OpenAI, streams: bool) -> None:
    fields: Json = {"model": "m", "tools": RESPONSE_TOOLS, "instructions": "Be brief."}
    input_items: Any = [{"role": "user", "content": "Weather?"}]
    if streams:
        with chat.responses.stream(input=input_items, **fields) as stream:
            kinds = [event.type for event in stream]
            done: Any = stream.get_final_response()
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds[-1] == "response.completed"
        assert {"response.reasoning_text.delta", "response.function_call_arguments.done"} <= set(kinds)
    else:
        done = chat.responses.create(input=input_items, **fields)
    assert [item.type for item in done.output] == ["reasoning", "message", "function_call", "function_call"]
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sun"}
        for item in done.output
        if item.type == "function_call"
    ]
    again = chat.responses.create(input=[*input_items, *done.output, *results], **fields)
    assert again.output_text == SAID
    assert scripted.requests[-1].messages[2] == scripted.answers[-2].message


CLAUDE_TOOLS: Any = [{"name": "weather", "input_schema": WEATHER}]


@pytest.mark.parametrize("streams", [False, True])
def test_messages_with_tools_and_thinking(scripted: Scripted, claude: anthropic.Anthropic, streams: bool) -> None:
    fields: Json = {"model": "m", "max_tokens": 2048, "tools": CLAUDE_TOOLS, "system": "Be brief."}
    fields["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    if streams:
        with claude.messages.stream(messages=ASKED, **fields) as stream:
            kinds = {event.type for event in stream}
            done: Any = stream.get_final_message()
        assert {"thinking", "signature", "text", "input_json", "message_stop"} <= kinds
    else:
        done = claude.messages.create(messages=ASKED, **fields)
    assert done.stop_reason == "tool_use"
    assert [block.type for block in done.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert done.usage.input_tokens == scripted.answers[-1].prompt_tokens
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sun"}
        for block in done.content
        if block.type == "tool_use"
    ]
    messages = [*ASKED, {"role": "assistant", "content": done.content}, {"role": "user", "content": results}]
    again = claude.messages.create(messages=messages, **fields)
    assert again.content[0].text == SAID
    assert again.stop_reason == "end_turn"
    assert scripted.requests[-1].messages[2] == scripted.answers[-2].message
    counted = claude.messages.count_tokens(model="m", messages=messages, system="Be brief.", tools=CLAUDE_TOOLS)
    assert counted.input_tokens == again.usage.input_tokens


def test_answers_say_how_they_ended(chat: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    cut = chat.chat.completions.create(model="m", messages=ASKED, max_completion_tokens=3)
    assert (cut.choices[0].finish_reason, cut.choices[0].message.content) == ("length", "Gr\N{REPLACEMENT CHARACTER}")
    response = chat.responses.create(model="m", input="go", max_output_tokens=2)
    assert (response.status, response.output_text) == ("incomplete", "Gr")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    message = claude.messages.create(model="m", messages=ASKED, max_tokens=2)
    assert message.stop_reason == "max_tokens"
    message = claude.messages.create(model="m", messages=ASKED, max_tokens=90, stop_sequences=["世"])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "世")
    assert message.content[0].to_dict()["text"] == "Grüße, "


def test_stream_that_fails_raises_in_the_client(
    scripted: Scripted, chat: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    scripted.fails_after = 5
    with pytest.raises(openai.APIError, match="engine is gone"):
        list(chat.chat.completions.create(model="m", messages=ASKED, stream=True))
    last = list(chat.responses.create(model="m", input="go", stream=True))[-1]
    assert last.type == "response.failed"
    with (
        pytest.raises(anthropic.APIStatusError, match="engine is gone"),
        claude.messages.stream(model="m", messages=ASKED, max_tokens=90) as stream,
    ):
        stream.get_final_message()


def test_refusals_name_the_field(chat: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat.chat.completions.create(model="m", messages=ASKED, n=2)
    assert refused.value.param == "n"
    with pytest.raises(openai.BadRequestError) as refused:
        chat.responses.create(model="m", input="go", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    image: Any = [{"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/secret"}}]
    with pytest.raises(anthropic.BadRequestError, match=r"messages\.0\.content\.0\.type"):
        claude.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": image}])


def test_generate_is_sglangs(server: tuple[Scripted, str]) -> None:
    url, body = (
        f"{server[1]}/generate",
        {"text": "Once", "rid": "mine", "return_logprob": True, "sampling_params": {"temperature": 0}},
    )
    whole = httpx.post(url, json=body).json()
    assert whole["text"] == SAID
    assert whole["meta_info"]["finish_reason"]["type"] == "stop"
    assert [token for _, token, _ in whole["meta_info"]["output_token_logprobs"]] == whole["output_ids"]
    with httpx.stream("POST", url, json=body | {"stream": True}) as response:
        lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert events[-1] == whole
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in pairwise(events))


def test_dialects_are_all_here(scripted: Scripted) -> None:
    assert {request.dialect for request in scripted.requests} == set(DialectName)
