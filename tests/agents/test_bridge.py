"""The prompts of a session: what the engine made stays as it was made, for every template and tokens that drift."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.turns import RootReason
from serve_apps.rollouts.agents import bridge
from serve_apps.rollouts.agents.agent_request import BadField
from serve_apps.rollouts.agents.bridge import WINDOW, Bridge, Rule
from serve_apps.rollouts.agents.rendering import Rendering
from tests.agents.models import CHATML, MODELS, QWEN, QWEN3, Model, tokenizer
from tests.agents.sessions import TOOLS, Message, Played

CHAT, TOOLED, THINKS = MODELS[0], Model("qwen", QWEN, "<|im_end|>"), Model("qwen3", QWEN3, "<|im_end|>")
SAID = st.text("ab the answr\n42{}é", min_size=1, max_size=12).map(str.strip).filter(bool)


def ids_of(model: Model, text: str, *, drifts: bool = True) -> list[int]:
    """drifts: each character by itself, as a model may generate it, and not as the tokenizer would."""
    encode = tokenizer(model).encode
    return [id_ for part in (text if drifts else [text]) for id_ in encode(part, add_special_tokens=False)]


def end_of(model: Model) -> int:
    return int(tokenizer(model).convert_tokens_to_ids(model.end))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@settings(max_examples=25)
@given(data=st.data())
def test_a_path_is_the_prompt_that_the_engine_gets(model: Model, data: st.DataObject) -> None:
    """Play turns of all kinds: answers that were cut, agents that shorten, repeat, or change earlier messages."""
    played, rendering = Played(Bridge(tokenizer(model))), Rendering(tokenizer(model))
    chat: list[Message] = [{"role": "user", "content": data.draw(SAID)}]
    if data.draw(st.booleans()):
        chat.insert(0, {"role": "system", "content": "Be kind."})
    faithful, chats = True, list[list[Message]]()
    for _ in range(data.draw(st.integers(2, 6))):
        placed = played.ask(chat)
        prompt = played.prompt(placed)
        if placed.extends is None:
            assert prompt == rendering.ids(rendering.text(chat)).tolist()
        else:
            before = played.path(placed.extends)
            assert prompt[: len(before)] == before
            assert len(prompt) > len(before)
        if faithful and model.stable:
            assert placed.root is (None if played.turns else RootReason.FIRST)
            assert tokenizer(model).decode(prompt) == rendering.text(chat)
        text_, cut, kept = data.draw(SAID), data.draw(st.booleans()), data.draw(st.sampled_from([str, str, str.upper]))
        played.record(
            placed,
            ids_of(model, text_) + ([] if cut else [end_of(model)]),
            {"role": "assistant", "content": text_},
        )
        faithful = faithful and kept(text_) == text_
        chats.append(chat)
        chat = [*chat, {"role": "assistant", "content": kept(text_)}, {"role": "user", "content": data.draw(SAID)}]
        if data.draw(st.integers(0, 5)) == 0:
            chat = data.draw(st.sampled_from(chats))
            faithful = False


@pytest.mark.parametrize("model", [TOOLED, THINKS], ids=["text", "renderer"])
@settings(max_examples=15)
@given(calls=st.lists(st.tuples(SAID, SAID, st.booleans()), min_size=1, max_size=3 * WINDOW // 2))
def test_tool_calls_and_their_results_go_on_as_the_template_has_them(
    model: Model, calls: list[tuple[str, str, bool]]
) -> None:
    name = "/models/Qwen3-4B" if model is THINKS else ""
    tokenizer_ = tokenizer(model, name)
    played, rendering = Played(Bridge(tokenizer_)), Rendering(tokenizer_)
    chat: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "look it up"}]
    thinks = "<think>\nI see\n</think>\n\n" if model is THINKS else ""
    for number, (spoken, result, cut) in enumerate(calls):
        placed = played.ask(chat, TOOLS)
        assert placed.extends == (number - 1 if number else None)
        assert placed.rule is ([Rule.TEXT, Rule.RENDERER][model is THINKS] if number else Rule.WHOLE)
        assert tokenizer_.decode(played.prompt(placed)) == rendering.text(chat, TOOLS)
        call = '{"name": "look_up", "arguments": {"word": "x"}}'
        text = f"{thinks}{spoken}\n<tool_call>\n{call}\n</tool_call>"
        function = {"name": "look_up", "arguments": '{"word":"x"}'}
        answer = {"role": "assistant", "content": spoken, "tool_calls": [{"id": f"c{number}", "function": function}]}
        reasoning = {"reasoning_content": "I see"} if thinks else {}
        ids = ids_of(model, f"{thinks}{spoken}\n") + ids_of(
            model, text.removeprefix(f"{thinks}{spoken}\n"), drifts=False
        )
        played.record(placed, ids + ([] if cut else [end_of(model)]), answer | reasoning)
        chat += [answer | reasoning, {"role": "tool", "tool_call_id": f"c{number}", "content": result}]


def test_the_template_s_own_spelling_of_an_answer_is_no_reason_to_begin_anew() -> None:
    """The model wrote its call with other white space than the template does."""
    played = Played(Bridge(tokenizer(TOOLED)))
    chat: list[Message] = [{"role": "user", "content": "look it up"}]
    text = '<tool_call>\n{"name":"look_up","arguments":{"word":"x"}}\n</tool_call>'
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": {"word": "x"}}}
    answer: Message = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = "<|im_start|>user\n<tool_response>\nr\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    for end, behind in (([end_of(TOOLED)], "\n"), ([], "<|im_end|>\n"), ([0], "\n")):
        if end == [0]:  # the padding token ends answers of base models
            end = [int(tokenizer(TOOLED).pad_token_id)]
        played.turns.clear()
        played.record(played.ask(chat, TOOLS), ids_of(TOOLED, text, drifts=False) + end, answer)
        placed = played.ask([*chat, answer, {"role": "tool", "tool_call_id": "c", "content": "r"}], TOOLS)
        assert (placed.extends, placed.rule) == (0, Rule.SUFFIX)
        assert tokenizer(TOOLED).decode(placed.observed) == behind + result


def test_a_template_that_hides_the_thinking_of_old_answers_begins_a_root() -> None:
    played = Played(Bridge(tokenizer(THINKS)))
    chat: list[Message] = [{"role": "user", "content": "1+1"}]
    answer: Message = {"role": "assistant", "reasoning_content": "easy", "content": "2"}
    text = "<think>\neasy\n</think>\n\n2<|im_end|>"
    first = played.ask(chat)
    played.record(first, ids_of(THINKS, text, drifts=False), answer)
    placed = played.ask([*chat, answer, {"role": "user", "content": "2+2"}])
    assert (placed.root, placed.extends) == (RootReason.DRIFT, None)
    assert (placed.nearest, placed.drift) == (0, len(first.observed))


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@settings(max_examples=15)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["tool"] * 6 + ["user"]), st.sampled_from([True, False, False])), max_size=14
    )
)
@example(steps=[("tool", True), *[("tool", False)] * WINDOW])
def test_the_last_messages_decide_as_the_whole_chat_would(model: Model, steps: list[tuple[str, bool]]) -> None:
    """Long chains of calls, some of whose answers have thought, between questions."""
    played = Played(Bridge(tokenizer(model)))
    chat: list[Message] = [{"role": "user", "content": "go"}]
    for number, (asks, thinks) in enumerate([*steps, ("user", False), ("user", False)]):
        placed = played.ask(chat)
        with patch.object(bridge, "last_of", lambda messages: messages):
            whole = played.ask(chat)
        assert (placed.extends, placed.observed.tolist()) == (whole.extends, whole.observed.tolist())
        spoken = f"<think>\nhm\n</think>\n\nstep {number}" if thinks else f"step {number}"
        answer = {"role": "assistant", "content": spoken}
        played.record(placed, [*ids_of(model, spoken, drifts=False), end_of(model)], answer)
        chat = [*chat, answer, {"role": asks, "content": "done"}]


def test_an_answer_whose_end_is_the_next_message_s_beginning() -> None:
    glm = MODELS[-1]
    played = Played(Bridge(tokenizer(glm)))
    chat: list[Message] = [{"role": "user", "content": "hm"}]
    answer: Message = {"role": "assistant", "content": "yes"}
    for end, behind in (("<|user|>", "\nok<|assistant|>\n"), ("", "<|user|>\nok<|assistant|>\n")):
        played.turns.clear()
        played.record(played.ask(chat), ids_of(glm, f"yes {end}", drifts=False), answer)
        placed = played.ask([*chat, answer, {"role": "user", "content": "ok"}])
        assert placed.rule is Rule.SUFFIX
        assert tokenizer(glm).decode(placed.observed) == behind


@given(st.data())
def test_ids_go_on_at_the_deepest_turn_that_they_begin_with(data: st.DataObject) -> None:
    played = Played(Bridge(tokenizer(CHAT)))
    some = st.lists(st.integers(0, 2), min_size=1, max_size=3)
    paths = list[list[int]]()
    for _ in range(data.draw(st.integers(1, 8))):
        start = data.draw(st.sampled_from(paths)) if paths and data.draw(st.booleans()) else []
        ids = start + data.draw(some)
        placed = played.ids(ids)
        lengths = [len(path) for path in paths if ids[: len(path)] == path]
        assert (placed.extends is None) == (not lengths)
        if placed.extends is not None:
            assert len(played.path(placed.extends)) == max(lengths)
        assert played.prompt(placed) == ids
        played.record(placed, data.draw(some), {"role": "assistant", "content": ""})
        paths.append(played.path(len(played.turns) - 1))


def test_the_library_is_used_for_a_model_that_it_knows_and_only_there() -> None:
    answer: Message = {"role": "assistant", "content": "ok", "tool_calls": []}
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": {}}}
    chat: list[Message] = [{"role": "user", "content": "hm"}, answer | {"tool_calls": [call]}]
    more: Message = {"role": "tool", "tool_call_id": "c", "content": "r"}
    cached = "/cache/models--Qwen--Qwen3-4B/snapshots/0a1b"
    for name, model, by in (
        ("Qwen/Qwen3-4B", THINKS, Rule.RENDERER),
        (cached, THINKS, Rule.RENDERER),
        ("/models/mine", THINKS, Rule.WHOLE),
        ("/models/Qwen3-4B", CHAT, Rule.TEXT),  # another template under the name
    ):
        played = Played(Bridge(tokenizer(model, name), {"enable_thinking": True}))
        played.record(played.ask(chat[:1], TOOLS), ids_of(model, "ok<|im_end|>", drifts=False), chat[1])
        assert played.ask([*chat, more], TOOLS).rule is by


def test_a_long_session_costs_what_a_short_one_does() -> None:
    """Characters that are rendered or encoded at a turn do not grow with the turns before it."""
    model = MODELS[2]
    counted = Counted(tokenizer(model))
    played = Played(Bridge(counted))
    chat: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "go"}]
    work = list[int]()
    for number in range(60):
        counted.characters = 0
        placed = played.ask(chat)
        work.append(counted.characters)
        assert placed.extends == (number - 1 if number else None)
        played.record(
            placed, [*ids_of(model, "an answer"), end_of(model)], {"role": "assistant", "content": "an answer"}
        )
        chat += [{"role": "assistant", "content": "an answer"}, {"role": "user", "content": "and then?"}]
    assert max(work[WINDOW:]) == min(work[WINDOW:])


class Counted:
    """A tokenizer that counts what it works on."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.characters = tokenizer, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
        text = str(self.tokenizer.apply_chat_template(*args, **kwargs))
        self.characters += len(text)
        return text

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        self.characters += len(text)
        return list(self.tokenizer.encode(text, **kwargs))


def test_what_the_template_refuses_is_the_caller_s_mistake() -> None:
    refusing = Model("refuses", "{{ raise_exception('no system here') }}", "<|im_end|>")
    with pytest.raises(BadField, match="no system here") as raised:
        Played(Bridge(tokenizer(refusing))).ask([{"role": "user", "content": "hm"}])
    assert raised.value.field == "messages"


def test_templates_that_want_arguments_as_json_get_them_so() -> None:
    wants = "{{ 'call ' + messages[0].tool_calls[0].function.arguments }}"
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    text = Rendering(tokenizer(Model("json", wants, "<|im_end|>"))).text([{"role": "assistant", "tool_calls": [call]}])
    assert json.loads(text.removeprefix("call ")) == {"a": 1}


def test_contents_in_parts_and_a_developer_are_texts_of_a_system() -> None:
    rendering = Rendering(tokenizer(Model("chatml", CHATML, "<|im_end|>")))
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}]
    assert (
        rendering.text([{"role": "developer", "content": parts}], asks=False)
        == "<|im_start|>system\nbe kind<|im_end|>\n"
    )
    assert np.array_equal(rendering.ids(""), np.empty(0, np.int32))
