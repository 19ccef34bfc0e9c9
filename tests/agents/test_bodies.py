"""The bodies that clients get for an answer, field by field, in every dialect; and the bodies of refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.rollouts import StopReason
from serve_apps.rollouts.agents.agent_request import Answer, DialectName
from serve_apps.rollouts.agents.canonical import Call, assistant, carried
from serve_apps.rollouts.agents.dialects import DIALECTS, MESSAGES
from tests.agents.test_reading import Json, read

CALL = Call("call_a", "look", '{"at": 1}')
SAID = Answer(
    id="s.3",
    created=7,
    message=assistant("Hi.", "hm", [CALL]),
    stop=StopReason.STOP,
    text="hm Hi.",
    prompt_tokens=10,
    tokens=(11, 12, 13),
    log_probs=(-0.5, -20000.0, -1.0),
    versions=(4, 6),
    cached_tokens=2,
    reasoning_tokens=1,
    pieces=(b"H", b"\xe4", b"i."),
)
PLAIN = replace(SAID, message=assistant("Hi."))
CALLED = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
ENTRIES = [
    {"token": "H", "bytes": [72], "logprob": -0.5, "top_logprobs": []},
    {"token": "\N{REPLACEMENT CHARACTER}", "bytes": [0xE4], "logprob": -9999.0, "top_logprobs": []},
    {"token": "i.", "bytes": [105, 46], "logprob": -1.0, "top_logprobs": []},
]


def whole(name: DialectName, spoken: Answer = SAID, **more: Any) -> Json:
    return DIALECTS[name].whole(read(name, **more), spoken)


def test_chat() -> None:
    assert whole(DialectName.CHAT, logprobs=True) == {
        "id": "chatcmpl-s.3",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi.",
                    "reasoning_content": "hm",
                    "tool_calls": [CALLED],
                    "refusal": None,
                    "annotations": [],
                },
                "logprobs": {"content": ENTRIES, "refusal": None},
                "finish_reason": "tool_calls",
            }
        ],
        "usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 2},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
        "system_fingerprint": "weights-6",
    }
    assert whole(DialectName.CHAT)["choices"][0]["logprobs"] is None
    assert whole(DialectName.CHAT, replace(SAID, versions=()))["system_fingerprint"] is None


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (assistant(), ""),
        (assistant("Hi."), "Hi."),
        (assistant(calls=[CALL]), None),
        (assistant("Hi.", "", [CALL]), "Hi."),
    ],
)
def test_chat_has_null_for_calls_alone(message: Json, content: str | None) -> None:
    assert whole(DialectName.CHAT, replace(SAID, message=message))["choices"][0]["message"]["content"] == content


ITEM = {"status": "completed"}
THOUGHT = {"id": "rs_s.3_0", "type": "reasoning", "summary": [], **ITEM}
MESSAGE = {"id": "msg_s.3_1", "type": "message", "role": "assistant", **ITEM}
FUNCTION_CALL = {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": '{"at": 1}', **ITEM}
TEXT = {"type": "output_text", "text": "Hi.", "annotations": [], "logprobs": []}


def test_responses() -> None:
    answer = whole(DialectName.RESPONSES)
    assert answer == {
        "id": "resp_s.3",
        "object": "response",
        "created_at": 7,
        "completed_at": 7,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "output": [
            THOUGHT | {"content": [{"type": "reasoning_text", "text": "hm"}]},
            MESSAGE | {"content": [TEXT]},
            FUNCTION_CALL | {"id": "fc_s.3_2"},
        ],
        "tools": [],
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}},
        "usage": {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 2},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 1},
            "total_tokens": 13,
        },
        "previous_response_id": None,
        "background": False,
        "store": False,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "prompt_cache_key": None,
        "safety_identifier": None,
        "temperature": 1.0,
        "tool_choice": "auto",
        "top_p": 1.0,
        "top_logprobs": 0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "service_tier": "default",
        "user": None,
    }


def test_responses_repeats_what_was_given() -> None:
    tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
    repeated: Json = {"tools": [tool], "tool_choice": "none", "temperature": 0.0, "parallel_tool_calls": False}
    repeated |= {"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}, "metadata": {"a": "b"}}
    answer = whole(DialectName.RESPONSES, **repeated)
    assert {name: answer[name] for name in repeated} == repeated | {
        "tools": [{"description": None, "strict": False, **tool}],
        "reasoning": {"effort": "low", "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }


@pytest.mark.parametrize("stop", [StopReason.LENGTH, StopReason.ABORT])
def test_responses_that_was_cut_is_incomplete(stop: StopReason) -> None:
    answer = whole(DialectName.RESPONSES, replace(SAID, stop=stop))
    assert (answer["status"], answer["completed_at"]) == ("incomplete", None)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["usage"]["total_tokens"] == 13


def test_responses_items() -> None:
    """Return the reasoning as a summary if the request wants one, and sealed; an empty message if there is
    nothing else.
    """
    include = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    thought, message, _ = whole(DialectName.RESPONSES, reasoning={"summary": "auto"}, include=include)["output"]
    sealed = thought.pop("encrypted_content")
    assert thought == THOUGHT | {"summary": [{"type": "summary_text", "text": "hm"}]}
    assert carried(sealed) == "hm"
    assert message["content"][0]["logprobs"] == ENTRIES
    (empty,) = whole(DialectName.RESPONSES, replace(SAID, message=assistant()))["output"]
    assert empty == MESSAGE | {"id": "msg_s.3_0", "content": [TEXT | {"text": ""}]}
    (call,) = whole(DialectName.RESPONSES, replace(SAID, message=assistant(calls=[CALL])))["output"]
    assert call == FUNCTION_CALL | {"id": "fc_s.3_0"}


def test_messages() -> None:
    answer = whole(DialectName.MESSAGES)
    thought = answer["content"].pop(0)
    assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
    assert len(thought["signature"]) == 64
    assert answer == {
        "id": "msg_s.3",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [
            {"type": "text", "text": "Hi.", "citations": []},
            {"type": "tool_use", "id": "call_a", "name": "look", "input": {"at": 1}, "caller": {"type": "direct"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": {
            "input_tokens": 8,
            "output_tokens": 3,
            "output_tokens_details": {"thinking_tokens": 1},
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "cache_creation": None,
            "server_tool_use": None,
            "service_tier": "standard",
            "inference_geo": None,
        },
    }
    assert MESSAGES.counted(10) == {"input_tokens": 10}


def test_messages_never_counts_less_than_nothing() -> None:
    assert whole(DialectName.MESSAGES, replace(SAID, cached_tokens=10))["usage"]["input_tokens"] == 0
    assert whole(DialectName.MESSAGES, replace(SAID, cached_tokens=12))["usage"]["input_tokens"] == 0


def test_messages_hides_thinking_and_gets_it_back() -> None:
    hidden = whole(DialectName.MESSAGES, thinking={"type": "enabled", "display": "omitted"})["content"][0]
    assert hidden["thinking"] == ""
    assert carried(hidden["signature"]) == "hm"
    shown = whole(DialectName.MESSAGES, thinking={"type": "enabled", "display": "summarized"})["content"][0]
    assert shown["thinking"] == "hm"


def test_messages_is_never_empty() -> None:
    empty = {"type": "text", "text": "", "citations": []}
    assert whole(DialectName.MESSAGES, replace(SAID, message=assistant()))["content"] == [empty]


@pytest.mark.parametrize(
    ("spoken", "ended"),
    [
        (PLAIN, ("end_turn", None)),
        (replace(PLAIN, matched="END"), ("stop_sequence", "END")),
        (replace(PLAIN, matched="of the run"), ("end_turn", None)),
        (replace(PLAIN, matched=5), ("end_turn", None)),
        (replace(SAID, matched="END"), ("tool_use", None)),
        (replace(SAID, stop=StopReason.LENGTH), ("max_tokens", None)),
        (replace(PLAIN, stop=StopReason.ABORT), ("max_tokens", None)),
    ],
)
def test_messages_says_how_it_ended(spoken: Answer, ended: tuple[str, str | None]) -> None:
    answer = whole(DialectName.MESSAGES, spoken, stop_sequences=["END"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ended


@pytest.mark.parametrize(
    ("spoken", "reason"),
    [
        (SAID, "tool_calls"),
        (PLAIN, "stop"),
        (replace(SAID, stop=StopReason.LENGTH), "length"),
        (replace(SAID, stop=StopReason.ABORT), "length"),
    ],
)
def test_chat_says_how_it_ended(spoken: Answer, reason: str) -> None:
    assert whole(DialectName.CHAT, spoken)["choices"][0]["finish_reason"] == reason


def test_generate() -> None:
    meta = {"finish_reason": {"type": "stop", "matched": 13}, "prompt_tokens": 10, "completion_tokens": 3}
    meta |= {"id": "s.3", "cached_tokens": 2, "weight_version": "6"}
    matched_answer = replace(SAID, matched=13)
    assert whole(DialectName.GENERATE, matched_answer) == {
        "text": "hm Hi.",
        "output_ids": [11, 12, 13],
        "meta_info": meta,
    }
    assert whole(DialectName.GENERATE, replace(matched_answer, versions=()))["meta_info"]["weight_version"] == "0"
    meta_info = whole(DialectName.GENERATE, matched_answer, return_logprob=True, rid="mine")["meta_info"]
    log_probs = [[-0.5, 11, None], [-9999.0, 12, None], [-1.0, 13, None]]
    assert meta_info == meta | {"id": "mine", "output_token_logprobs": log_probs, "input_token_logprobs": []}
    texts = whole(DialectName.GENERATE, matched_answer, return_logprob=True, return_text_in_logprobs=True)["meta_info"]
    assert [text for _, _, text in texts["output_token_logprobs"]] == ["H", "\N{REPLACEMENT CHARACTER}", "i."]


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        (StopReason.STOP, {"type": "stop"}),
        (StopReason.LENGTH, {"type": "length", "length": 3}),
        (StopReason.ABORT, {"type": "abort"}),
    ],
)
def test_generate_says_how_it_ended(stop: StopReason, finish: Json) -> None:
    assert whole(DialectName.GENERATE, replace(SAID, stop=stop))["meta_info"]["finish_reason"] == finish


OPENAI_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    499: "invalid_request_error",
    500: "server_error",
    503: "server_error",
}
ANTHROPIC_KINDS = OPENAI_KINDS | {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


@pytest.mark.parametrize("name", [DialectName.CHAT, DialectName.RESPONSES])
def test_refusals_of_openai(name: DialectName) -> None:
    for status, kind in OPENAI_KINDS.items():
        error = DIALECTS[name].refusal(status, "no", "n")["error"]
        assert error == {"message": "no", "type": kind, "param": "n", "code": None}
    assert DIALECTS[name].refusal(400, "no")["error"]["param"] is None


def test_refusals_of_anthropic_and_sglang() -> None:
    for status, kind in ANTHROPIC_KINDS.items():
        refusal = MESSAGES.refusal(status, "no", "n")
        assert refusal["error"]["type"] == kind
        assert (refusal["type"], refusal["request_id"]) == ("error", None)
        assert "n" in refusal["error"]["message"]
        assert DIALECTS[DialectName.GENERATE].refusal(status, "no", "n")["error"]["code"] == status
    for name in (DialectName.MESSAGES, DialectName.GENERATE):
        assert DIALECTS[name].refusal(400, "no")["error"]["message"] == "no"
