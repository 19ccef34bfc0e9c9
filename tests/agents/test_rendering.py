"""Which messages of a long chat are rendered, how the template is shown each, and where the new ids of a turn begin."""

from __future__ import annotations

from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.turns import RootReason
from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField, DialectName
from serve_apps.rollouts.agents.bridge import WINDOW, Bridge, last_of
from serve_apps.rollouts.agents.rendering import Renderers, Rendering, for_template, known_name
from tests.agents.models import MODELS, Model, tokenizer
from tests.agents.sessions import TOOLS, Message, Turn

KINDS: dict[str, Message] = {
    "s": {"role": "system", "content": "s"},
    "d": {"role": "developer", "content": "d"},
    "u": {"role": "user", "content": "so </think> ends"},
    "t": {"role": "tool", "content": "r"},
    "a": {"role": "assistant", "content": "yes"},
    "c": {"role": "assistant", "content": None, "reasoning_content": ""},
    "R": {"role": "assistant", "content": "yes", "reasoning_content": "hm"},
    "T": {"role": "assistant", "content": "<think>hm</think>yes"},
}


def shown(kinds: str) -> list[int]:
    """The places of those that are rendered, by what is promised."""
    head, tail = len(list(takewhile(lambda kind: kind in "sd", kinds))), len(kinds) - WINDOW
    while tail > head and kinds[tail] == "t":
        tail -= 1
    if tail <= head:
        return list(range(len(kinds)))
    kept = {*range(head), *range(tail, len(kinds))}
    if kinds[tail] != "u":
        questions = [at for at in range(head, tail) if kinds[at] == "u"][-1:]
        kept.update(questions)
        thoughts = [at for at in range(max([head, *questions]) + 1, tail) if kinds[at] in "RT"]
        for at in thoughts[-1:]:
            results = takewhile(lambda place: kinds[place] == "t", range(at + 1, tail))
            kept.update([at, *results])
    return sorted(kept)


@given(st.sampled_from(["", "s", "d", "sd"]), st.text("utttacRT", max_size=3 * WINDOW))
def test_what_is_rendered_of_a_long_chat(head: str, kinds: str) -> None:
    messages = [KINDS[kind] | {"at": at} for at, kind in enumerate(head + kinds)]
    assert [message["at"] for message in last_of(messages)] == shown(head + kinds)


CHAT = MODELS[0]
MADE = tokenizer(CHAT)
END, USER = (int(MADE.convert_tokens_to_ids(token)) for token in (CHAT.end, "<|user|>"))
PAD, PLAIN = int(MADE.pad_token_id), 1


@pytest.mark.parametrize(
    ("generated", "new", "closes", "ends"),
    [
        ([PLAIN, END], [END, PLAIN], True, True),
        ([PLAIN, END], [END, PLAIN], False, True),
        ([PLAIN, PAD], [END, PLAIN], True, True),
        ([PLAIN, PAD], [END, PLAIN], False, False),
        ([PLAIN, END], [USER], True, True),
        ([PLAIN, END], [USER], False, False),
        ([PLAIN, USER], [USER], False, True),
        ([END, PLAIN], [END, PLAIN], True, False),
        ([PLAIN], [PLAIN], True, False),
        ([], [END], True, False),
        ([END], [], True, False),
    ],
)
def test_whether_the_end_was_generated(generated: list[int], new: list[int], closes: bool, ends: bool) -> None:
    ids = (np.array(part, np.int32) for part in (generated, new))
    assert Rendering(MADE).ends(*ids, closes=closes) is ends


@pytest.mark.parametrize(
    ("given_message", "plain"),
    [
        ({"role": "user", "content": "a", "name": None}, {"role": "user", "content": "a"}),
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        (KINDS["a"] | {"tool_calls": []}, KINDS["a"] | {"tool_calls": []}),
        (KINDS["a"] | {"tool_calls": None}, KINDS["a"]),
    ],
)
def test_a_message_as_templates_take_it(given_message: Message, plain: Message) -> None:
    assert for_template(given_message) == plain


@pytest.mark.parametrize(
    ("arguments", "shown_as"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (" \n", {}),
        (None, {}),
        ("null", {}),
        ("half {", "half {"),
    ],
)
def test_arguments_as_templates_take_them(arguments: Any, shown_as: Any) -> None:
    function = {"name": "f", "arguments": arguments}
    for call in ({"id": "c", "function": function}, {"id": "c", "type": "function", "function": function}):
        calls = for_template({"role": "assistant", "tool_calls": [call]})["tool_calls"]
        assert calls == [{"type": "function", "id": "c", "function": {"name": "f", "arguments": shown_as}}]


SHOWS = Model(
    "shows", "{{ tools | length if tools else 'none' }} {{ kind }} {{ own }} {{ add_generation_prompt }}", CHAT.end
)


def test_the_template_has_the_tools_and_the_arguments() -> None:
    """A request's own before the run's."""
    rendering = Rendering(tokenizer(SHOWS), {"kind": "run", "own": "run"})
    assert rendering.text([KINDS["u"]], TOOLS, {"own": "request"}) == "1 run request True"
    assert rendering.text([KINDS["u"]], (), None, asks=False) == "none run run False"
    assert rendering.arguments({"own": 1}) == {"kind": "run", "own": 1}
    assert rendering.arguments(None) == {"kind": "run", "own": "run"}


STRICT = Model("strict", "{{ messages[0].tool_calls[0].function.arguments + '' }}{{ messages[1].content }}", CHAT.end)


def test_a_template_that_takes_json_alone_gets_other_messages_as_they_are() -> None:
    call = {"function": {"name": "f", "arguments": {"é": 1}}}
    chat: list[Message] = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "a"}]
    assert Rendering(tokenizer(STRICT)).text(chat) == '{"é": 1}a'
    chat[0] = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{half"}}]}
    assert Rendering(tokenizer(STRICT)).text(chat) == "{halfa"


@pytest.mark.parametrize(("field", "named"), [({}, "messages"), ({"field": "text"}, "text")])
def test_a_text_without_room_is_refused_by_its_field(field: dict[str, str], named: str) -> None:
    rendering = Rendering(MADE, longest=1000)
    with pytest.raises(BadField) as error:
        rendering.ids("a b " * 200_000, **field)
    assert error.value.field == named
    assert len(rendering.ids("a b " * 100)) > 100


def test_a_text_prompt_without_room_is_refused() -> None:
    with pytest.raises(BadField) as error:
        Bridge(MADE, longest=1000).ids("a b " * 200_000)
    assert error.value.field == "text"
    assert Bridge(MADE).ids("a").tolist() == MADE.encode("a", add_special_tokens=False)


def test_special_tokens_are_read_back() -> None:
    text = f"yes{CHAT.end} ."
    assert Rendering(MADE).decode(Rendering(MADE).ids(text)) == text


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-4B", "qwen3"),
        ("/models/Qwen3-4B", "qwen3"),
        ("/models/Qwen3-4B/", "qwen3"),
        ("/cache/models--Qwen--Qwen3-4B/snapshots/0a1b", "qwen3"),
        ("/cache/models--Qwen--Mine/snapshots/Qwen3-4B", ""),
        ("/models/mine", ""),
        ("", ""),
    ],
)
def test_a_model_is_known_by_its_name(model: str, name: str) -> None:
    assert known_name(model) == name


class Renderer:
    """A renderer of the library's: what it is asked, and ids behind the turn's."""

    def bridge_to_next_turn(self, before: list[int], generated: list[int], new: Any, *, tools: Any) -> Any:
        self.requests = (new, tools)
        return SimpleNamespace(token_ids=[*before, *generated, 7])


def test_results_of_tools_are_named_for_a_renderer() -> None:
    """Name results by the call that they answer, if they have no name."""
    renderers, renderer = Renderers(Rendering(tokenizer(MODELS[0], "Qwen/Qwen3-4B"))), Renderer()
    renderers._renderers = dict.fromkeys(["{}"], renderer)
    call = {"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    results = [{"role": "tool", "tool_call_id": call_id, "content": "r"} for call_id in ("c", "other")]
    results.append(results[0] | {"name": "own"})
    messages = (KINDS["u"], KINDS["a"] | {"tool_calls": [call]}, *results)
    turn = Turn(0, None, "", (), "", np.array([1, 2], np.int32), np.array([3], np.int32))
    ids = renderers.new_ids(AgentRequest(DialectName.CHAT, "m", messages), 1, turn)
    assert ids is not None
    assert ids.tolist() == [7]
    assert [message.get("name") for message in renderer.requests[0]] == ["look_up", None, "own"]
    assert renderer.requests[1] is None
    request = AgentRequest(DialectName.CHAT, "m", (KINDS["u"], KINDS["a"], KINDS["u"]), tools=TOOLS)
    assert renderers.new_ids(request, 1, turn) is not None
    assert renderer.requests[1] == list(TOOLS)


def test_ids_are_placed_as_they_are() -> None:
    request = AgentRequest(DialectName.GENERATE, "", tokens=(5, 6))

    class Empty:
        def turns(self) -> list[Any]:
            return []

        def answered(self, digest: str) -> None:
            return None

    placed, other = (
        Bridge(MADE).place(request_, Empty())
        for request_ in (request, AgentRequest(DialectName.GENERATE, "", tokens=(6,)))
    )
    assert placed.observed.tolist() == [5, 6]
    assert (placed.nearest, placed.drift, placed.messages) == (None, None, placed.chain.links)
    assert placed.chain.links != other.chain.links
    assert (placed.root, placed.extends) == (RootReason.FIRST, None)
