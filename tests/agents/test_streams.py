"""The events that clients get for an answer as it comes, one by one, in every dialect."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import (
    Answer,
    CallArguments,
    CallBegun,
    Content,
    DialectName,
    Encoder,
    Part,
    Reasoning,
)
from serve_apps.rollouts.agents.canonical import assistant, carried
from serve_apps.rollouts.agents.dialects import DIALECTS
from tests.agents.test_bodies import ENTRIES, PLAIN, SAID
from tests.agents.test_reading import Json, read

EVERY = (CHAT, RESPONSES, MESSAGES, GENERATE) = tuple(DialectName)
PARTS: tuple[Part, ...] = (
    Reasoning("h"),
    Reasoning("m"),
    Content("H", (11,), (-0.5,), (b"H",)),
    Content("", (12,), (-20000.0,), (b"\xe4",)),
    Content("i.", (13,), (-1.0,), (b"i.",)),
    CallBegun(0, "call_a", "look"),
    CallArguments(0, '{"at"'),
    CallArguments(0, ": 1}"),
)
TWO = CallBegun(1, "call_b", "go")


def encoder(name: DialectName, **more: Any) -> Encoder:
    return DIALECTS[name].stream(read(name, stream=True, **more), "s.3", 7, 10)


def parsed(raw: bytes) -> list[Json]:
    """The events; each ends with an empty line, and one that has a name has its type's."""
    values = []
    for block in raw.decode().split("\n\n")[:-1]:
        *head, data = block.split("\n")
        value = {"type": "[DONE]"} if data == "data: [DONE]" else json.loads(data.removeprefix("data: "))
        assert head in ([], [f"event: {value.get('type')}"])
        values.append(value)
    return values


def streamed(name: DialectName, parts: tuple[Part, ...] = PARTS, answer: Answer = SAID, **more: Any) -> list[Json]:
    encoder_ = encoder(name, **more)
    return parsed(encoder_.begin() + b"".join(map(encoder_.part, parts)) + encoder_.end(answer))


HEAD = {"id": "chatcmpl-s.3", "object": "chat.completion.chunk", "created": 7, "model": "m"}


def chunk(delta: Json, **more: Any) -> Json:
    return HEAD | {"choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} | more]}


def test_chat() -> None:
    call = {"index": 0, "id": "call_a", "type": "function", "function": {"name": "look", "arguments": ""}}
    *events, last, done = streamed(CHAT)
    assert events == [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        chunk({"reasoning_content": "h"}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "H"}),
        chunk({"content": "i."}),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"at"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}),
    ]
    assert last == chunk({}, finish_reason="tool_calls") | {"system_fingerprint": "weights-6"}
    assert done == {"type": "[DONE]"}


def test_chat_with_usage_and_log_probs() -> None:
    events = streamed(CHAT, stream_options={"include_usage": True}, logprobs=True)
    assert [event["usage"] is None for event in events[:-1]] == [True] * (len(events) - 2) + [False]
    assert (events[-2]["choices"], events[-2]["usage"]["total_tokens"]) == ([], 13)
    shown = [event["choices"][0]["logprobs"] for event in events[:-2]]
    assert [entry for entries in shown if entries for entry in entries["content"]] == ENTRIES
    assert all(entry["refusal"] is None for entry in shown if entry)
    assert "usage" not in streamed(CHAT, stream_options={})[0]


def test_messages() -> None:
    start, ping, *events, delta, stop = streamed(MESSAGES)
    assert start["message"]["usage"]["input_tokens"] == 10
    assert start["message"]["usage"]["output_tokens"] == 0
    assert start["message"]["usage"]["output_tokens_details"] == {"thinking_tokens": 0}
    assert (ping["type"], stop["type"]) == ("ping", "message_stop")
    signature = events[3]["delta"].pop("signature")
    assert len(signature) == 64
    use = {"type": "tool_use", "id": "call_a", "name": "look", "input": {}, "caller": {"type": "direct"}}
    text = {"type": "text", "text": "", "citations": []}
    assert events == [
        *block(0, {"type": "thinking", "thinking": "", "signature": ""}, thought("h"), thought("m"), SIGNED),
        *block(1, text, {"type": "text_delta", "text": "H"}, {"type": "text_delta", "text": "i."}),
        *block(2, use, *({"type": "input_json_delta", "partial_json": piece} for piece in ('{"at"', ": 1}"))),
    ]
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert (delta["usage"]["output_tokens"], delta["usage"]["input_tokens"]) == (3, 8)


SIGNED = {"type": "signature_delta"}


def thought(text: str) -> Json:
    return {"type": "thinking_delta", "thinking": text}


def block(index: int, content: Json, *deltas: Json) -> list[Json]:
    begun = {"type": "content_block_start", "index": index, "content_block": content}
    pieces = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    return [begun, *pieces, {"type": "content_block_stop", "index": index}]


def test_messages_hides_thinking_and_signs_each_block_apart() -> None:
    parts = (Reasoning("hm"), Content("Hi."), Reasoning("so"))
    events = streamed(MESSAGES, parts, thinking={"type": "enabled", "display": "omitted"})
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert [delta["type"] for delta in deltas] == ["signature_delta", "text_delta", "signature_delta"]
    assert [carried(delta["signature"]) for delta in deltas if "signature" in delta] == ["hm", "so"]


def test_messages_opens_a_block_for_each_call_and_one_for_nothing() -> None:
    started = [event for event in streamed(MESSAGES, (*PARTS, TWO)) if event["type"] == "content_block_start"]
    assert [(event["index"], event["content_block"].get("name")) for event in started][2:] == [(2, "look"), (3, "go")]
    empty = streamed(MESSAGES, (Content("", (11,), (-1.0,)),), replace(SAID, message=assistant()))
    assert [event["type"] for event in empty[2:4]] == ["content_block_start", "content_block_stop"]
    assert empty[2]["content_block"] == {"type": "text", "text": "", "citations": []}


def responded(parts: tuple[Part, ...] = PARTS, answer: Answer = SAID, **more: Any) -> list[Json]:
    events = streamed(RESPONSES, parts, answer, **more)
    assert [event.pop("sequence_number") for event in events] == list(range(len(events)))
    return [event | {"type": event["type"].removeprefix("response.")} for event in events]


def test_responses_says_each_item() -> None:
    created, in_progress, *events, completed = responded()
    assert (created["type"], in_progress["type"], completed["type"]) == ("created", "in_progress", "completed")
    begun = created["response"]
    assert begun == in_progress["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert (begun["incomplete_details"], begun["completed_at"], begun["created_at"]) == (None, None, 7)
    assert completed["response"] == DIALECTS[RESPONSES].whole(read(RESPONSES, stream=True), SAID)
    thought, message, call = completed["response"]["output"]
    assert events[:6] == [
        {"type": "output_item.added", "output_index": 0, "item": thought | {"status": "in_progress", "content": []}},
        part("added", 0, "rs_s.3_0", {"type": "reasoning_text", "text": ""}),
        *({"type": "reasoning_text.delta", **place(0, "rs_s.3_0"), "delta": piece} for piece in ("h", "m")),
        {"type": "reasoning_text.done", **place(0, "rs_s.3_0"), "text": "hm"},
        part("done", 0, "rs_s.3_0", {"type": "reasoning_text", "text": "hm"}),
    ]
    assert events[6] == {"type": "output_item.done", "output_index": 0, "item": thought}
    text = {"type": "output_text", "annotations": [], "logprobs": []}
    where = place(1, "msg_s.3_1")
    assert events[7:14] == [
        {"type": "output_item.added", "output_index": 1, "item": message | {"status": "in_progress", "content": []}},
        part("added", 1, "msg_s.3_1", text | {"text": ""}),
        *({"type": "output_text.delta", **where, "delta": piece, "logprobs": []} for piece in ("H", "i.")),
        {"type": "output_text.done", **where, "text": "Hi.", "logprobs": []},
        part("done", 1, "msg_s.3_1", text | {"text": "Hi."}),
        {"type": "output_item.done", "output_index": 1, "item": message},
    ]
    at = {"item_id": "fc_s.3_2", "output_index": 2}
    added = call | {"status": "in_progress", "arguments": ""}
    assert events[14:] == [
        {"type": "output_item.added", "output_index": 2, "item": added},
        *({"type": "function_call_arguments.delta", **at, "delta": piece} for piece in ('{"at"', ": 1}")),
        {"type": "function_call_arguments.done", **at, "name": "look", "arguments": '{"at": 1}'},
        {"type": "output_item.done", "output_index": 2, "item": call},
    ]


def place(index: int, id: str) -> Json:
    return {"item_id": id, "output_index": index, "content_index": 0}


def part(verb: str, index: int, id: str, content: Json) -> Json:
    return {"type": f"content_part.{verb}", **place(index, id), "part": content}


def test_responses_shows_log_probs_with_the_text_they_are_of() -> None:
    """Show log-probs of tokens without text with the next text, and all of a message at its end."""
    include = ["message.output_text.logprobs"]
    events = responded((*PARTS[2:5], CallBegun(0, "c", "f"), Content("!", (5,), (-2.0,), (b"!",))), include=include)
    deltas = [event["logprobs"] for event in events if event["type"] == "output_text.delta"]
    assert [len(entries) for entries in deltas] == [1, 2, 1]
    assert [*deltas[0], *deltas[1]] == ENTRIES
    assert [event["logprobs"] for event in events if event["type"] == "output_text.done"] == [ENTRIES, deltas[2]]
    reported = responded(PARTS[2:5])
    assert [event["logprobs"] for event in reported if event["type"] == "output_text.delta"] == [[], []]


def test_responses_summary_and_two_calls() -> None:
    events = responded((*PARTS, TWO, Reasoning("?")), reasoning={"summary": "auto"})
    kinds = [event["type"] for event in events if "summary" in event["type"]]
    names = ["part.added", "text.delta", "text.delta", "text.done", "part.done"]
    assert kinds[:5] == [f"reasoning_summary_{name}" for name in names]
    first = next(event for event in events if event["type"] == "reasoning_summary_text.delta")
    assert (first["summary_index"], "content_index" in first) == (0, False)
    assert [event["item"]["type"] for event in events if event["type"] == "output_item.done"] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "reasoning",
    ]
    assert [event["arguments"] for event in events if event["type"] == "function_call_arguments.done"] == [
        '{"at": 1}',
        "",
    ]


@pytest.mark.parametrize("parts", [(), (Content("", (1,), (-1.0,), (b"",)),)])
def test_responses_that_says_nothing_is_an_empty_message(parts: tuple[Part, ...]) -> None:
    output = responded(parts, replace(SAID, message=assistant()))[-1]["response"]["output"]
    assert [(item["type"], item["content"][0]["text"]) for item in output] == [("message", "")]
    called = responded((CallBegun(0, "c", "f"), CallArguments(0, "{}")))
    assert [item["type"] for item in called[-1]["response"]["output"]] == ["function_call"]


def test_responses_that_was_cut_says_so() -> None:
    assert responded(PARTS[2:5], replace(PLAIN, stop=StopReason.LENGTH))[-1]["type"] == "incomplete"


def test_generate() -> None:
    parts = [part for part in PARTS if isinstance(part, Content)]
    events = streamed(GENERATE, PARTS, return_logprob=True)
    assert [(event["text"], event["output_ids"]) for event in events[:-2]] == [
        ("H", [11]),
        ("H", [11, 12]),
        ("Hi.", [11, 12, 13]),
    ]
    for number, event in enumerate(events[: len(parts)], 1):
        log_probs = [[-0.5, 11, None], [-9999.0, 12, None], [-1.0, 13, None]][:number]
        meta = {"id": "s.3", "finish_reason": None, "prompt_tokens": 10, "completion_tokens": number}
        assert event["meta_info"] == meta | {"cached_tokens": 0, "output_token_logprobs": log_probs}
    last = DIALECTS[GENERATE].whole(read(GENERATE, return_logprob=True), SAID)
    assert events[-2:] == [last, {"type": "[DONE]"}]
    plain = streamed(GENERATE, PARTS, rid="mine")[0]["meta_info"]
    assert (plain["id"], "output_token_logprobs" in plain) == ("mine", False)


@pytest.mark.parametrize("name", EVERY)
def test_a_stream_that_fails_ends_with_the_refusal(name: DialectName) -> None:
    encoder_ = encoder(name)
    parsed(encoder_.begin() + encoder_.part(Content("a", (1,), (-1.0,), (b"a",))))
    events = parsed(encoder_.fail(502, "the engine is away"))
    if name is RESPONSES:
        (failed,) = events
        assert failed["type"] == "response.failed"
        assert (failed["response"]["status"], failed["response"]["error"]["code"]) == ("failed", "server_error")
        assert failed["response"]["completed_at"] is None
        return
    assert events[0] == DIALECTS[name].refusal(502, "the engine is away")
    assert events[1:] == ([] if name is MESSAGES else [{"type": "[DONE]"}])


@pytest.mark.parametrize("name", EVERY)
def test_an_empty_piece_is_no_event(name: DialectName) -> None:
    encoder_ = encoder(name)
    encoder_.begin()
    shown = encoder_.part(Content("", (1,), (-1.0,), (b"",)))
    assert bool(shown) == (name is GENERATE)
    assert encoder_.part(Reasoning("hm")) or name is GENERATE
