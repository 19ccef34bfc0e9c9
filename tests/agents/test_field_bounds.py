"""Which values a field may have: the lowest and the highest are taken, what is beyond is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from serve_apps.rollouts.agents.agent_request import BadField, DialectName
from tests.agents.test_reading import TALKING, Json, read, refused

CHAT, RESPONSES, MESSAGES, GENERATE = DialectName
MOST = 2**31 - 1
TINY = 1e-9


def sampling(name: DialectName, field: str, value: Any) -> Json:
    """Return the sampling of a request. Raises BadField."""
    if name is GENERATE:
        return dict(read(name, sampling_params={field: value}).sampling)
    return dict(read(name, **{field: value}).sampling)


def refusal(name: DialectName, field: str, value: Any) -> BadField:
    if name is GENERATE:
        return refused(name, sampling_params={field: value})
    return refused(name, **{field: value})


def path(name: DialectName, field: str) -> str:
    return f"sampling_params.{field}" if name is GENERATE else field


NUMBERS: list[tuple[DialectName, str, str, list[float], list[float]]] = [
    (CHAT, "temperature", "temperature", [0, 2], [-TINY, 2 + TINY]),
    (CHAT, "top_p", "top_p", [TINY, 1], [0, 1 + TINY]),
    (CHAT, "frequency_penalty", "frequency_penalty", [-2, 2], [-2 - TINY, 2 + TINY]),
    (CHAT, "presence_penalty", "presence_penalty", [-2, 2], [-2 - TINY, 2 + TINY]),
    (CHAT, "min_p", "min_p", [0, 1], [-TINY, 1 + TINY]),
    (CHAT, "repetition_penalty", "repetition_penalty", [TINY, 2], [0, 2 + TINY]),
    (CHAT, "top_k", "top_k", [-1, 1, MOST], [-2, MOST + 1]),
    (CHAT, "max_tokens", "max_new_tokens", [1, MOST], [0, MOST + 1]),
    (CHAT, "max_completion_tokens", "max_new_tokens", [1, MOST], [0, MOST + 1]),
    (CHAT, "min_tokens", "min_new_tokens", [0, MOST], [-1, MOST + 1]),
    (CHAT, "top_logprobs", "", [0], [1, -1]),
    (CHAT, "n", "", [1], [0, 2]),
    (RESPONSES, "max_output_tokens", "max_new_tokens", [1, MOST], [0, MOST + 1]),
    (MESSAGES, "max_tokens", "max_new_tokens", [1, MOST], [0, MOST + 1]),
    (MESSAGES, "temperature", "temperature", [0, 2], [-TINY, 2 + TINY]),
    (MESSAGES, "top_p", "top_p", [TINY, 1], [0, 1 + TINY]),
    (GENERATE, "max_new_tokens", "max_new_tokens", [1, MOST], [0, MOST + 1]),
    (GENERATE, "min_new_tokens", "min_new_tokens", [0, MOST], [-1, MOST + 1]),
    (GENERATE, "temperature", "temperature", [0, 1e9], [-TINY]),
    (GENERATE, "top_p", "top_p", [TINY, 1], [0, 1 + TINY]),
    (GENERATE, "frequency_penalty", "frequency_penalty", [-2, 2], [-2 - TINY, 2 + TINY]),
    (GENERATE, "presence_penalty", "presence_penalty", [-2, 2], [-2 - TINY, 2 + TINY]),
    (GENERATE, "n", "", [1], [0, 2]),
]


@pytest.mark.parametrize(("name", "field", "sets", "good", "wrong"), NUMBERS)
def test_bounds(name: DialectName, field: str, sets: str, good: list[float], wrong: list[float]) -> None:
    for value in good:
        assert sampling(name, field, value).get(sets) == (value if sets else None)
    for value in [*wrong, True, "1"]:
        error = refusal(name, field, value)
        assert error.field == path(name, field)
        assert "None" not in error.message


@pytest.mark.parametrize(("name", "field", "value", "named"), [(CHAT, "temperature", 3, "2"), (CHAT, "top_p", 3, "1")])
def test_the_highest_value_is_named(name: DialectName, field: str, value: float, named: str) -> None:
    assert named in refusal(name, field, value).message.partition(", not")[0]


@pytest.mark.parametrize(("name", "field", "value"), [(GENERATE, "temperature", -1), (CHAT, "max_tokens", 0)])
def test_what_no_limit_says_is_not_named_as_one(name: DialectName, field: str, value: float) -> None:
    message = refusal(name, field, value).message
    assert all(word not in message for word in ("inf", "e+09", str(MOST)))


@pytest.mark.parametrize("name", TALKING)
def test_seeds_have_63_bits(name: DialectName) -> None:
    seeds = {0: 0, 7: 7, 2**63 - 1: 2**63 - 1, -1: 2**63 - 1, -(2**63): 0}
    assert {seed: read(name, seed=seed).sampling["sampling_seed"] for seed in seeds} == seeds
    assert refused(name, seed=2**63).field == "seed"
    assert refused(name, seed=1.5).field == "seed"


def test_the_whole_vocabulary_has_two_names() -> None:
    assert [read(CHAT, top_k=value).sampling["top_k"] for value in (0, -1, 1)] == [-1, -1, 1]


@pytest.mark.parametrize("name", [CHAT, GENERATE])
def test_token_ids_that_stop(name: DialectName) -> None:
    assert sampling(name, "stop_token_ids", [0, MOST])["stop_token_ids"] == [0, MOST]
    for value, at in (([5, -1], ".1"), ([MOST + 1], ".0"), ([True], ".0"), (["a"], ".0"), (5, "")):
        assert refusal(name, "stop_token_ids", value).field == path(name, "stop_token_ids") + at


@pytest.mark.parametrize("name", [CHAT, GENERATE])
def test_stop_strings(name: DialectName) -> None:
    assert sampling(name, "stop", "a")["stop"] == ["a"]
    assert sampling(name, "stop", ["a", "b"])["stop"] == ["a", "b"]
    for value, at in (("", ""), (["a", ""], ""), (["a", 1], ".1"), (1, "")):
        assert refusal(name, "stop", value).field == path(name, "stop") + at


@pytest.mark.parametrize(("field", "good", "wrong"), [("ignore_eos", False, 0), ("regex", "a", 1), ("ebnf", "a", [])])
@pytest.mark.parametrize("name", [CHAT, GENERATE])
def test_what_sglang_takes_beside_is_of_its_type(name: DialectName, field: str, good: Any, wrong: Any) -> None:
    assert sampling(name, field, good)[field] == good
    assert refusal(name, field, wrong).field == path(name, field)


@pytest.mark.parametrize(("field", "wrong"), [("json_schema", {}), ("structural_tag", 1)])
def test_shapes_of_generate_are_texts(field: str, wrong: Any) -> None:
    assert sampling(GENERATE, field, "{}") == {field: "{}"}
    assert refusal(GENERATE, field, wrong).field == f"sampling_params.{field}"


@pytest.mark.parametrize(
    ("name", "field", "good", "wrong"),
    [
        (CHAT, "store", False, [True, 0]),
        (CHAT, "modalities", ["text"], [["text", "audio"], "text"]),
        (CHAT, "separate_reasoning", True, [False, 1]),
        (CHAT, "stream_reasoning", True, [False, 1]),
        (CHAT, "continue_final_message", False, [True, 0]),
        (RESPONSES, "store", False, [True]),
        (RESPONSES, "background", False, [True]),
        (RESPONSES, "truncation", "disabled", ["auto"]),
        (MESSAGES, "context_management", {"edits": []}, [{"edits": [{"type": "clear_tool_uses_20250919"}]}]),
        (GENERATE, "logprob_start_len", -1, [0, -2]),
        (GENERATE, "top_logprobs_num", 0, [1, False]),
        (GENERATE, "return_hidden_states", False, [True]),
        (GENERATE, "return_routed_experts", False, [True]),
    ],
)
def test_fields_with_one_value(name: DialectName, field: str, good: Any, wrong: list[Any]) -> None:
    """It is the only one: true is not 1."""
    assert read(name, **{field: good}).body[field] == good
    for value in wrong:
        assert refused(name, **{field: value}).field == field


@pytest.mark.parametrize(
    ("name", "field"),
    [
        *((name, "stream") for name in DialectName),
        (CHAT, "logprobs"),
        (CHAT, "parallel_tool_calls"),
        (RESPONSES, "parallel_tool_calls"),
        (GENERATE, "return_logprob"),
        *((name, "skip_special_tokens") for name in TALKING),
    ],
)
def test_flags_are_true_or_false(name: DialectName, field: str) -> None:
    for value in (0, 1, "true", []):
        assert refused(name, **{field: value}).field == field


@pytest.mark.parametrize(
    ("name", "field", "wrong"),
    [
        (CHAT, "messages", {}),
        (CHAT, "stream_options", []),
        (CHAT, "response_format", []),
        (CHAT, "reasoning", "low"),
        (CHAT, "reasoning_effort", 1),
        (CHAT, "verbosity", 1),
        (CHAT, "chat_template_kwargs", []),
        (CHAT, "tools", {}),
        (RESPONSES, "input", {}),
        (RESPONSES, "instructions", 1),
        (RESPONSES, "include", "x"),
        (RESPONSES, "text", "x"),
        (MESSAGES, "system", 1),
        (MESSAGES, "thinking", "x"),
        (MESSAGES, "output_config", []),
        (MESSAGES, "tool_choice", "auto"),
        (GENERATE, "sampling_params", []),
        (GENERATE, "rid", 1),
    ],
)
def test_fields_are_of_their_type(name: DialectName, field: str, wrong: Any) -> None:
    assert refused(name, **{field: wrong}).field == field


def test_generate_has_one_prompt() -> None:
    assert read(GENERATE, text=None, input_ids=[0, 5]).tokens == (0, 5)
    assert read(GENERATE, text="hi", input_ids=[]).text == "hi"
    for fields, field in (
        ({"text": None}, "text"),
        ({"text": ""}, "text"),
        ({"input_ids": [1]}, "input_ids"),
        ({"text": None, "input_ids": [1, -1]}, "input_ids.1"),
        ({"text": None, "input_ids": "ab"}, "input_ids"),
    ):
        assert refused(GENERATE, **fields).field == field


def test_generate_shows_what_it_is_asked_to() -> None:
    plain, other = read(GENERATE), read(GENERATE, return_logprob=True, stream=True)
    assert (plain.skip_special, plain.trim_stop, plain.log_probs, plain.stream) == (False, True, None, False)
    assert (other.log_probs, other.stream, other.tokens) == (0, True, None)
    request = read(GENERATE, sampling_params={"skip_special_tokens": True, "no_stop_trim": True})
    assert (request.skip_special, request.trim_stop, request.sampling) == (True, False, {})
    for field in ("skip_special_tokens", "no_stop_trim"):
        assert refusal(GENERATE, field, 1).field == f"sampling_params.{field}"


@pytest.mark.parametrize("name", TALKING)
def test_what_is_not_given_is_as_the_api_has_it(name: DialectName) -> None:
    request = read(name)
    assert (request.stream, request.parallel, request.tool_choice, request.log_probs) == (False, True, "auto", None)
    assert (request.skip_special, request.trim_stop, request.tools, request.template) == (None, True, (), {})
    assert (read(name, skip_special_tokens=False).skip_special, read(name, stream=True).stream) == (False, True)


def test_log_probs_are_asked_for() -> None:
    assert read(CHAT, logprobs=True).log_probs == 0
    assert read(CHAT, logprobs=False).log_probs is None
    assert read(RESPONSES, include=["message.output_text.logprobs"]).log_probs == 0
    assert read(RESPONSES, include=["reasoning.encrypted_content"]).log_probs is None


@pytest.mark.parametrize(("first", "other"), [(5, 9), (9, 5), (None, 5), (5, None)])
def test_the_smaller_limit_counts(first: int | None, other: int | None) -> None:
    assert read(CHAT, max_tokens=first, max_completion_tokens=other).sampling == {"max_new_tokens": 5}
