"""Test the rules for each field of a row, and the prompt that comes from it: the edges that a data set meets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from schemas.arrays import EMPTY_TOKENS, unpack
from schemas.errors import MissingPart
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from slime_events.core.config.data import DataSettings
from slime_events.loop.prompts.messages import SHOWN, names_of
from slime_events.loop.prompts.prompt import (
    BadReason,
    Problem,
    Prompt,
    draw_prompt,
    make_prompt,
    make_prompts,
    rejected,
    submitted,
)
from tests.data.templated import USER, Templated, call

SOURCE = Source(path="f", row=1, line=2, offset=3)


def prompt_of(tokenizer: Any = None, *, template: bool = False, longest: int | None = None, **fields: Any) -> Prompt:
    prompt = make_prompt({"input": "2+2"} | fields, DataSettings(apply_chat_template=template), tokenizer, longest)
    assert isinstance(prompt, Prompt), prompt
    return prompt


def problem(tokenizer: Any = None, *, template: bool = False, longest: int | None = None, **fields: Any) -> Problem:
    result = make_prompt({"input": "2+2"} | fields, DataSettings(apply_chat_template=template), tokenizer, longest)
    assert isinstance(result, Problem), result
    assert result.message
    return result


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), (3, "3"), (0, "0"), (2.5, "2.5"), (2**70, str(2**70)), ("\ud83d", "\ufffd"), (" ", " ")],
)
def test_a_prompt_is_a_text_or_a_number(value: Any, text: str) -> None:
    prompt = prompt_of(Templated(), input=value)
    assert (prompt.text, prompt.messages, prompt.chat, prompt.as_given) == (text, None, False, text)
    assert prompt.tokens is not None
    assert prompt.tokens.tolist() == [ord(letter) for letter in text]
    assert prompt_of(input=value).tokens is None


@pytest.mark.parametrize("value", [None, "", []])
def test_an_empty_prompt(value: Any) -> None:
    for template in (False, True):
        assert problem(Templated(), template=template, input=value).reason is BadReason.EMPTY_PROMPT


@pytest.mark.parametrize("value", [True, False, {"a": 1}, ["a"], [1, 2]])
def test_a_prompt_of_another_type(value: Any) -> None:
    assert problem(Templated(), input=value).reason is BadReason.WRONG_TYPE


def test_a_chat_stays_one_where_no_template_is_asked_for() -> None:
    chat, plain = prompt_of(Templated(), input=[USER]), prompt_of(Templated(), template=True, input=[USER])
    assert (chat.chat, chat.messages, chat.as_given) == (True, [USER], [USER])
    assert (plain.chat, plain.messages, plain.as_given) == (False, [USER], plain.text)
    assert chat.text == plain.text == "<user>2+2"
    assert prompt_of(Templated(), template=True).messages == [USER]


@pytest.mark.parametrize(
    ("value", "metadata"),
    [
        (None, {}),
        ("", {}),
        ({}, {}),
        ("{}", {}),
        (' {"a": 1}', {"a": 1}),
        ("[1]", [1]),
        ("[x]", "[x]"),
        ("a", "a"),
        (0, 0),
        (False, False),
        ([], []),
        ({"a": (1,)}, {"a": [1]}),
    ],
)
def test_metadata_is_any_value(value: Any, metadata: Any) -> None:
    assert prompt_of(metadata=value).metadata == metadata
    assert prompt_of().metadata == {}


@pytest.mark.parametrize(
    ("value", "tools"),
    [(None, None), ([], None), ("[]", None), ([{"a": 1}], [{"a": 1}]), ('[{"a": 1}]', [{"a": 1}]), ("null", None)],
)
def test_tools_are_objects(value: Any, tools: Any) -> None:
    assert prompt_of(tools=value).tools == tools


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": {}},
        {"tools": [1]},
        {"tools": [{"a": 1}, 1]},
        {"tools": ""},
        {"tools": "x"},
        {"tools": 0},
        {"metadata": "{x"},
        {"metadata": {"a": object()}},
        {"tools": [{"a": 2**70}]},
    ],
)
def test_fields_that_cannot_be_carried(fields: dict[str, Any]) -> None:
    assert problem(**fields).reason is BadReason.WRONG_TYPE


def test_a_label_is_wanted_where_it_is_named() -> None:
    settings = DataSettings(label_key="answer")
    assert isinstance(prompt := make_prompt({"input": "a", "answer": None}, settings), Prompt)
    assert prompt.label is None
    assert isinstance(missing := make_prompt({"input": "a"}, settings), Problem)
    assert missing.reason is BadReason.MISSING_FIELD
    assert prompt_of(label=5).label is None


def test_the_template_is_given_tools_and_arguments() -> None:
    class Noted(Templated):
        def apply_chat_template(self, conversation: Sequence[Any], **kwargs: Any) -> str:
            self.kwargs = kwargs
            return "x"

    noted = Noted()
    settings = DataSettings(apply_chat_template=True, apply_chat_template_kwargs={"thinking": False})
    fixed = {"tokenize": False, "add_generation_prompt": True, "thinking": False}
    make_prompt({"input": "a"}, settings, noted)
    assert noted.kwargs == fixed
    make_prompt({"input": "a", "tools": [{"a": 1}]}, settings, noted)
    assert noted.kwargs == fixed | {"tools": [{"a": 1}]}


class Broken(Templated):
    """Raises what it was made with, where `word` is in the text."""

    def __init__(self, error: Exception, word: str = "") -> None:
        self.error, self.word = error, word

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self.word in text:
            raise self.error
        return super().encode(text)

    def apply_chat_template(self, conversation: Sequence[Any], **kwargs: Any) -> str:
        raise self.error


def test_what_a_tokenizer_or_a_template_raises_is_the_rows() -> None:
    assert problem(Broken(ValueError("x"))).reason is BadReason.TEMPLATE_FAILED
    assert problem(Broken(ValueError("x")), template=True).reason is BadReason.TEMPLATE_FAILED
    supervised = DataSettings(supervised=True)
    chat = [USER, {"role": "assistant", "content": "4"}]
    problem_ = make_prompt({"input": chat}, supervised, Broken(ValueError("x")))
    assert isinstance(problem_, Problem)
    assert problem_.reason is BadReason.TEMPLATE_FAILED
    long = problem(Broken(ValueError("x"), "9"), longest=5, input="1" * 500_000 + "9")
    assert long.reason in (BadReason.TOO_LONG, BadReason.TEMPLATE_FAILED)


def test_a_tokenizer_that_could_not_be_loaded_ends_all() -> None:
    for template in (False, True):
        with pytest.raises(MissingPart):
            prompt_of(Broken(MissingPart("no tokenizer")), template=template)
    rows = [({"input": text}, DataSettings()) for text in ("a", "b")]
    with pytest.raises(MissingPart):
        make_prompts(rows, Broken(MissingPart("no tokenizer"), "b"))


def test_prompts_of_one_call_keep_their_places() -> None:
    texts: list[Any] = ["a", None, "b", "9", "c" * 9, "d"]
    rows = [({"input": text}, DataSettings()) for text in texts]
    prompts = make_prompts(rows, Broken(ValueError("x"), "9"), 8)
    shown = [prompt.text if isinstance(prompt, Prompt) else prompt.reason for prompt in prompts]
    assert shown == ["a", BadReason.EMPTY_PROMPT, "b", BadReason.TEMPLATE_FAILED, BadReason.TOO_LONG, "d"]
    assert make_prompts([], Templated()) == []


@pytest.mark.parametrize(("count", "longest", "fits"), [(3, 3, True), (4, 3, False), (4, None, True)])
def test_how_long_a_prompt_may_be(count: int, longest: int | None, fits: bool) -> None:
    if fits:
        tokens = prompt_of(Templated(), longest=longest, input="a" * count).tokens
        assert tokens is not None
        assert (len(tokens), tokens.dtype) == (count, "int32")
    else:
        assert problem(Templated(), longest=longest, input="a" * count).reason is BadReason.TOO_LONG


def test_a_text_without_tokens_is_no_prompt() -> None:
    class Nothing(Templated):
        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            return []

    assert problem(Nothing()).reason is BadReason.EMPTY_PROMPT


def test_a_chat_to_train_on_needs_no_tokenizer_to_be_looked_at() -> None:
    settings, answer = DataSettings(supervised=True), {"role": "assistant", "content": "4"}
    prompt = make_prompt({"input": [USER, answer]}, settings)
    assert isinstance(prompt, Prompt)
    assert (prompt.text, prompt.messages, prompt.tokens) == ("", [USER, answer], None)
    for messages, reason in (
        ([USER], BadReason.EMPTY_PROMPT),
        ([USER, call({}) | {"content": None}], None),
        ([USER, {"role": "assistant", "tool_calls": call({})["tool_calls"]}], BadReason.WRONG_TYPE),
        ("text", BadReason.WRONG_TYPE),
        ([], BadReason.WRONG_TYPE),
    ):
        made_of = make_prompt({"input": messages}, settings)
        assert (made_of.reason if isinstance(made_of, Problem) else None) is reason, messages


def test_the_event_of_a_prompt() -> None:
    prompt = prompt_of(Templated(), input=[USER], metadata={"m": 1}, tools=[{"t": 1}])
    event = submitted(prompt, "g", SOURCE, label="own")
    assert (event.group, event.text, event.messages, event.chat) == ("g", prompt.text, [USER], True)
    assert (event.label, event.metadata, event.tools, event.source) == ("own", {"m": 1}, [{"t": 1}], SOURCE)
    assert prompt.tokens is not None
    assert unpack(event.tokens).tolist() == prompt.tokens.tolist()
    assert submitted(prompt_of(), "g", SOURCE).tokens == EMPTY_TOKENS
    refused = rejected(problem(input=None), SOURCE, "set")
    assert (refused.source, refused.dataset, refused.reason.partition(":")[0]) == (SOURCE, "set", "empty_prompt")


def test_a_drawn_prompt_is_as_this_run_s_model_sees_it() -> None:
    def drawn(value: Any, longest: int | None = None) -> PromptSubmitted | PromptRejected:
        return draw_prompt({"input": value, "label": 1}, DataSettings(), Templated(), longest, SOURCE)

    text, chat = drawn("a"), drawn([USER])
    assert isinstance(text, PromptSubmitted)
    assert isinstance(chat, PromptSubmitted)
    assert (text.text, text.label, text.group, text.chat) == ("a", 1, SOURCE.draw, False)
    assert (chat.text, chat.messages, chat.chat) == ("<user>2+2", [USER], False)
    assert isinstance(drawn("aaa", 2), PromptRejected)


@pytest.mark.parametrize(("count", "more"), [(0, None), (1, None), (SHOWN, None), (SHOWN + 1, 1), (SHOWN + 5, 5)])
def test_names_in_a_sentence(count: int, more: int | None) -> None:
    names = names_of({f"n{number}": 0 for number in range(count)})
    assert names.count("'n") == min(count, SHOWN) == min(count, 8)
    assert ("more" in names) == (more is not None)
    assert more is None or f" {more} more" in names
    assert bool(names)


CALL = {"function": {"name": "add", "arguments": {"x": 1}}}


@pytest.mark.parametrize(
    ("call", "read"),
    [
        (CALL | {"id": None}, CALL),
        ({"function": CALL["function"] | {"more": None}}, CALL),
        ({"function": {"name": "add"}}, {"function": {"name": "add", "arguments": {}}}),
        ({"name": "add", "arguments": " ", "id": None}, {"name": "add", "arguments": {}}),
        ({"function": {"name": "add", "arguments": [1]}}, {"function": {"name": "add", "arguments": [1]}}),
    ],
)
def test_calls_are_read(call: Any, read: Any) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert prompt_of(Templated(), template=True, input=[USER, message]).messages == [
        USER,
        message | {"tool_calls": [read]},
    ]


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}, "tool_calls[0].function.name"),
        ({"role": "assistant", "tool_calls": [{"name": 1}]}, "tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [CALL, {"name": ""}]}, "tool_calls[1].name"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": True}]}, "tool_calls[0].arguments"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": 1.5}]}, "tool_calls[0].arguments"),
        ({"role": "assistant", "tool_calls": {}, "content": "a"}, "tool_calls"),
        ({"role": "", "content": "a"}, "role"),
        ({"role": None, "content": "a"}, "role"),
        ({"role": "user", "tool_calls": [CALL]}, "content"),
        ({"role": "user", "content": ["a"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text"),
    ],
)
def test_messages_name_the_field_that_is_wrong(message: Any, path: str) -> None:
    problem_ = problem(Templated(), template=True, input=[USER, message])
    assert problem_.reason is BadReason.WRONG_TYPE
    assert problem_.message.startswith(f"input[1].{path}:")


@pytest.mark.parametrize(
    ("content", "kind"),
    [({}, "an object"), (True, "true or false"), (1, "a number"), (1.5, "a number"), (b"", "a bytes")],
)
def test_what_is_there_instead_is_named(content: Any, kind: str) -> None:
    assert problem(Templated(), template=True, input=[{"role": "user", "content": content}]).message.endswith(kind)
