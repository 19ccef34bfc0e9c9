"""Prompts of chats: what a template would lose is refused by field, and the rest is what transformers renders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.prompt import BadReason, Problem, make_prompt, make_prompts
from tests.data.templated import USER, Templated, call, rendered

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=9,
)
NAMES = st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "type", "text", "refusal"])
CHATS = st.lists(st.dictionaries(NAMES, JSON | st.lists(st.dictionaries(NAMES, JSON)), max_size=4) | JSON, max_size=4)


@given(prompt=CHATS | JSON, label=JSON, metadata=JSON, tools=JSON | CHATS, template=st.booleans())
def test_any_fields_make_a_prompt_that_the_log_carries_or_a_problem(
    prompt: Any, label: Any, metadata: Any, tools: Any, template: bool
) -> None:
    fields = {"input": prompt, "label": label, "metadata": metadata, "tools": tools}
    for supervised in (False, True):
        settings = DataSettings(label_key="label", apply_chat_template=template, supervised=supervised)
        result = make_prompt(fields, settings, None if supervised else Templated(), 1000)
        if isinstance(result, Problem):
            assert result.message.encode()
        else:
            carried = (result.text, result.label, result.metadata, result.tools, result.messages)
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(carried)) is not None


def chat(*messages: dict[str, Any]) -> Any:
    return make_prompt({"input": list(messages)}, DataSettings(apply_chat_template=True), Templated())


TEXT = {"type": "text", "text": "3+4"}
REFUSED: list[tuple[Sequence[Any], str]] = [
    ([USER, {"role": "user", "content": [TEXT, {"type": "image_url", "image_url": {"url": "x"}}]}],
     "input[1].content[1].type: the model reads text, not image_url"),
    ([{"role": "user", "content": [{"type": "image", "image": {"bytes": b"x"}}]}], "not image"),
    ([{"role": "user", "content": [{"type": "input_audio"}]}], "not input_audio"),
    ([{"role": "user", "content": [{"type": "text"}]}], "input[0].content[0].text: this is missing"),
    ([{"role": "user", "content": [{"type": "text", "text": 3}]}], "input[0].content[0].text: this has to be a text"),
    ([{"role": "user", "content": ["x"]}], "input[0].content[0]: this has to be an object"),
    ([{"role": "user", "content": []}], "input[0].content: the list of parts is empty"),
    ([{"role": "user", "content": None}], "input[0].content: it is null"),
    ([{"role": "user", "content": 7}], "input[0].content: it has to be a text, or a list of text parts, not a number"),
    ([{"role": "user", "content": {"text": "x"}}], "not an object"),
    ([{"role": "user", "content": True}], "not true or false"),
    ([{"from": "human", "value": "x"}], "input[0].role: it has to be a text; there is 'from', 'value'"),
    ([{"role": 3, "content": "x"}], "input[0].role: it has to be a text, not a number"),
    ([USER, None], "input[1]: a message has to be an object, not null"),
    ([USER, {"role": "assistant", "content": None}], "input[1].content: it is null"),
    ([USER, {"role": "assistant", "content": None, "tool_calls": []}], "input[1].content: it is null"),
    ([USER, {"role": "assistant", "tool_calls": "[]", "content": "x"}], "input[1].tool_calls: it has to be a list"),
    ([USER, {"role": "assistant", "tool_calls": [3]}], "input[1].tool_calls[0]: a call has to be an object"),
    ([USER, {"role": "assistant", "tool_calls": [{"id": "c"}]}], "input[1].tool_calls[0].function: it has to be"),
    ([USER, {"role": "assistant", "tool_calls": [{"function": {}}]}], "input[1].tool_calls[0].function.name: it has"),
    ([USER, call(3)], "input[1].tool_calls[0].function.arguments: it has to be an object or its JSON, not a number"),
    ([USER, {"role": "tool", "content": {"sum": 4}}], "input[1].content: it has to be a text"),
    ([{**USER, "id": 10**30}], "'input[0].id' is an integer of some 31 digits"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "reason"), REFUSED)
def test_what_a_template_would_lose_is_refused_by_field(messages: Sequence[Any], reason: str) -> None:
    prompt = chat(*messages)
    assert isinstance(prompt, Problem), prompt.text
    assert prompt.reason is BadReason.WRONG_TYPE
    assert reason in prompt.message


@pytest.mark.parametrize(
    ("messages", "as_read"),
    [
        ([{"role": "user", "content": [TEXT]}], [{"role": "user", "content": "3+4"}]),
        ([{"role": "user", "content": [TEXT, TEXT]}], [{"role": "user", "content": "3+4\n3+4"}]),
        ([{"role": "assistant", "content": [TEXT, TEXT]}], [{"role": "assistant", "content": "3+43+4"}]),
        ([USER, call('{"x": 2}')], [USER, call('{"x": 2}')]),
        ([USER, call({"x": 2})], [USER, call({"x": 2})]),
        ([USER, call("")], [USER, call({})]),
        ([USER, call(None)], [USER, call({})]),
        ([USER, call(" ", content="")], [USER, call({}, content="")]),
        ([{**USER, "name": None, "tool_calls": None}], [USER]),
        ([{**USER, "name": "eve"}], [{**USER, "name": "eve"}]),
    ],
)
def test_a_chat_is_what_transformers_makes_of_its_texts(messages: Sequence[Any], as_read: Sequence[Any]) -> None:
    prompt = chat(*messages)
    assert not isinstance(prompt, Problem), prompt.message
    assert prompt.text == rendered(as_read)
    assert prompt.messages == as_read
    assert '"arguments": }' not in prompt.text


def test_the_agents_api_shows_an_empty_call_as_a_prompt_file_does() -> None:
    from serve_apps.rollouts.agents.rendering import for_template

    shown = for_template(call(""))
    assert shown["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("text", ["[easy] from a book", "[1] a citation", "hard", "[", "a {b}"])
def test_metadata_that_is_a_text_stays_one(text: str) -> None:
    prompt = make_prompt({"input": "x", "metadata": text}, DataSettings())
    assert not isinstance(prompt, Problem)
    assert prompt.metadata == text


def test_text_of_a_users_own_source_may_hold_half_a_character() -> None:
    prompt = make_prompt({"input": "a\ud83d", "metadata": {"\ud83d": "\ud83d"}}, DataSettings(), Templated())
    assert not isinstance(prompt, Problem)
    assert (prompt.text, prompt.metadata) == ("a\ufffd", {"\ufffd": "\ufffd"})


def test_a_tokenizer_that_refuses_one_text_costs_that_text() -> None:
    class Picky(Templated):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            if "3" in text:
                raise OverflowError("three")
            return super().encode(text)

    prompts = make_prompts([({"input": f"{n}"}, DataSettings()) for n in range(5)], Picky())
    assert [isinstance(prompt, Problem) for prompt in prompts] == [False, False, False, True, False]
