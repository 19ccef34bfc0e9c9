"""Test that an answer comes back as the recorded message, through the clients' own types."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic import TypeAdapter

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
    Answer,
    CallArguments,
    CallBegun,
    Content,
    Dialect,
    DialectName,
    Encoder,
    Part,
    Reasoning,
)
from serve_apps.rollouts.agents.canonical import Call, assistant, calls_of, canonical_json
from serve_apps.rollouts.agents.dialects import DIALECTS
from tests.agents.whole import read_whole

Json = dict[str, Any]
CHAT, RESPONSES = DIALECTS[DialectName.CHAT], DIALECTS[DialectName.RESPONSES]
MESSAGES = DIALECTS[DialectName.MESSAGES]
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TOOL_NAMES = ("look", "weather_in", "run-1")

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_arguments = st.dictionaries(st.text(), _values, max_size=4).map(lambda value: json.dumps(value, ensure_ascii=False))
_calls = st.lists(st.tuples(st.sampled_from(TOOL_NAMES), _arguments), max_size=3)


@st.composite
def answers(draw: st.DrawFn, arguments: st.SearchStrategy[str] = _arguments) -> list[Part]:
    """The parts of some answer: reasoning, text and calls, in pieces, and text after calls too."""
    parts: list[Part] = [Reasoning(text) for text in draw(st.lists(st.text(min_size=1), max_size=3))]
    parts += [Content(text) for text in draw(st.lists(st.text(), max_size=3))]
    for index in range(draw(st.integers(0, 3))):
        parts.append(CallBegun(index, f"call_{index}", draw(st.sampled_from(TOOL_NAMES))))
        text = draw(arguments)
        cut = draw(st.integers(0, len(text)))
        parts += [CallArguments(index, piece) for piece in (text[:cut], text[cut:]) if piece]
        parts += [Content(text) for text in draw(st.lists(st.text(), max_size=1))]
    return parts


def said_of(parts: list[Part]) -> Answer:
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    arguments = {
        begun.index: "".join(p.text for p in parts if isinstance(p, CallArguments) and p.index == begun.index)
        for begun in parts
        if isinstance(begun, CallBegun)
    }
    calls = [Call(p.id, p.name, arguments[p.index]) for p in parts if isinstance(p, CallBegun)]
    return Answer("t1", 7, assistant(content, reasoning, calls), StopReason.STOP, "", 10, (1, 2), (-1.0, -2.0), (4,))


def chat_body(*more: Json) -> Json:
    return {"model": "m", "messages": [{"role": "user", "content": "go"}, *more]}


def responses_body(*more: Json) -> Json:
    return {"model": "m", "input": [{"role": "user", "content": "go"}, *more]}


def messages_body(*more: Json) -> Json:
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}, *more]}


def echoed(dialect: Dialect, body: Json) -> Json:
    """The answer's canonical message, where it was the second of a conversation."""
    return read_whole(dialect, json.dumps(body).encode()).messages[1]


def events(encoder: Encoder, parts: list[Part], reply: Answer) -> list[Json]:
    raw = encoder.begin() + b"".join(encoder.part(part) for part in parts) + encoder.end(reply)
    lines = (line[6:] for line in raw.decode().split("\n") if line.startswith("data: "))
    return [json.loads(line) for line in lines if line != "[DONE]"]


TOLD = {"role": "user", "content": "and?"}


@settings(max_examples=40)
@given(answers())
def test_chat_whole(parts: list[Part]) -> None:
    reply, request = said_of(parts), read_whole(CHAT, json.dumps(chat_body()).encode())
    message = ChatCompletion.model_validate(CHAT.whole(request, reply)).choices[0].message
    for back in (message.model_dump(exclude_unset=True), message.model_dump(), message.model_dump(exclude_none=True)):
        assert echoed(CHAT, chat_body(back, TOLD)) == reply.message


@settings(max_examples=40)
@given(answers())
def test_chat_stream(parts: list[Part]) -> None:
    reply, request = said_of(parts), read_whole(CHAT, json.dumps(chat_body()).encode())
    state: Any = ChatCompletionStreamState()
    thought = ""
    for event in events(CHAT.stream(request, "t1", 7), parts, reply):
        thought += event["choices"][0]["delta"].get("reasoning_content", "")
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    back = state.get_final_completion().choices[0].message.model_dump(exclude_none=True)
    assert echoed(CHAT, chat_body(back | {"reasoning_content": thought}, TOLD)) == reply.message


@pytest.mark.parametrize("more", [{}, {"reasoning": {"summary": "auto"}}, {"include": ["reasoning.encrypted_content"]}])
@settings(max_examples=40)
@given(parts=answers())
def test_responses(more: Json, parts: list[Part]) -> None:
    reply, request = said_of(parts), read_whole(RESPONSES, json.dumps(responses_body() | more).encode())
    whole = RESPONSES.whole(request, reply)
    streamed = events(RESPONSES.stream(request, "t1", 7), parts, reply)
    assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
    done = [event["item"] for event in streamed if event["type"] == "response.output_item.done"]
    assert done == streamed[-1]["response"]["output"]
    for response in (whole, streamed[-1]["response"]):
        output = Response.model_validate(response).output
        back = [item.model_dump(exclude_unset=True) for item in output]
        assert echoed(RESPONSES, responses_body(*back, TOLD)) == reply.message
        if "include" in more:  # as clients do that keep the encrypted part alone
            hidden = [item | {"content": []} if item["type"] == "reasoning" else item for item in back]
            assert echoed(RESPONSES, responses_body(*hidden, TOLD)) == reply.message


@pytest.mark.parametrize("more", [{}, {"thinking": {"type": "adaptive", "display": "omitted"}}])
@settings(max_examples=40)
@given(parts=answers())
def test_messages(more: Json, parts: list[Part]) -> None:
    reply, request = said_of(parts), read_whole(MESSAGES, json.dumps(messages_body() | more).encode())
    whole = Message.model_validate(MESSAGES.whole(request, reply))
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events(MESSAGES.stream(request, "t1", 7), parts, reply):
        if event["type"] != "ping":
            raw = EVENT.validate_python(event)
            snapshot = accumulate_event(
                event=raw, current_snapshot=snapshot, output_format=anthropic.NOT_GIVEN, json_bufs=buffers
            )
    assert "omitted" not in str(more) or not any(block.type == "thinking" and block.thinking for block in whole.content)
    for message in (whole, snapshot):
        content = [block.model_dump(exclude_unset=True) for block in message.content]
        back = {"role": "assistant", "content": content}
        assert echoed(MESSAGES, messages_body(back, TOLD)) == reply.message


@settings(max_examples=40)
@given(answers())
def test_dialects_agree(parts: list[Part]) -> None:
    """Continue in another dialect with the same conversation."""
    reply = said_of(parts)
    calls = [
        {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}
        for id, name, arguments in calls_of(reply.message)
    ]
    uses = [
        {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
        for id, name, arguments in calls_of(reply.message)
    ]
    thought, text = reply.message.get("reasoning_content", ""), reply.message["content"]
    items = [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": thought}], "summary": []}]
    items += [{"role": "assistant", "content": [{"type": "output_text", "text": text}]}, *calls]
    blocks = [{"type": "thinking", "thinking": thought, "signature": "x"}, {"type": "text", "text": text}, *uses]
    as_chat = echoed(CHAT, chat_body(reply.message, TOLD))
    assert as_chat == echoed(RESPONSES, responses_body(*items, TOLD)) == reply.message
    assert as_chat == echoed(MESSAGES, messages_body({"role": "assistant", "content": blocks}, TOLD))


@given(st.text())
@settings(max_examples=300)
def test_canonical_json_of_any_text_is_stable(text: str) -> None:
    once = canonical_json(text)
    assert canonical_json(once) == once
    once.encode()


@given(_values)
def test_canonical_json_does_not_see_how_it_is_written(value: Any) -> None:
    loose = json.dumps(value, indent=2, ensure_ascii=True)
    assert canonical_json(loose) == canonical_json(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def test_half_of_a_call_comes_back_as_it_was() -> None:
    parts: list[Part] = [CallBegun(0, "call_0", "look"), CallArguments(0, '{"at": "he')]
    reply = said_of(parts)
    message = CHAT.whole(read_whole(CHAT, json.dumps(chat_body()).encode()), reply)["choices"][0]["message"]
    assert echoed(CHAT, chat_body(message, TOLD)) == reply.message
    request = read_whole(MESSAGES, json.dumps(messages_body()).encode())
    assert MESSAGES.whole(request, reply)["content"][0]["input"] == {}
