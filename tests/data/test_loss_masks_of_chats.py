"""Masks of any conversation beside the whole chat as its template renders it, and beside the type that reads that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_events.plugins.loss_masks import MultiTurnLossMaskGenerator
from tests.agents.models import MODELS, tokenizer

BY_NAME = {model.name: tokenizer(model) for model in MODELS}
NO_THOUGHT = "<think>\n\n</think>\n\n"
"""qwen3 renders each answer as the last one, which then has a thought."""
TEXTS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def message(role: str) -> st.SearchStrategy[dict[str, Any]]:
    return TEXTS.map(lambda text: {"role": role, "content": text})


@st.composite
def turns(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A question, and answers that call none, one or several tools, whose results follow each other."""
    messages = [draw(message("user"))]
    for calls in draw(st.lists(st.integers(1, 3), max_size=2)):
        function = {"name": "look_up", "arguments": {"word": draw(TEXTS)}}
        answer = draw(message("assistant")) | {"tool_calls": [{"type": "function", "function": function}] * calls}
        messages += [answer, *(draw(message("tool")) for _ in range(calls))]
    if draw(st.booleans()):
        messages.append(draw(message("system")))
    return [*messages, draw(message("assistant"))]


@st.composite
def chats(draw: st.DrawFn) -> list[dict[str, Any]]:
    first = [draw(message("system"))] if draw(st.booleans()) else []
    return first + [message for some in draw(st.lists(turns(), min_size=1, max_size=3)) for message in some]


def masked(kind: str, name: str, chat: list[dict[str, Any]], tools: Any = None) -> tuple[str, list[str]]:
    """The text of all tokens, and that of each trained run."""
    model_tokenizer: Any = BY_NAME[name]
    masks = MultiTurnLossMaskGenerator(model_tokenizer, kind)
    tokens, mask = masks.get_loss_mask(chat, tools)
    return model_tokenizer.decode(tokens), masks.get_text_from_loss_mask(tokens, mask)


@pytest.mark.parametrize("kind", ["qwen", "qwen3", "qwen3_5"])
@given(chat=chats())
def test_the_messages_end_to_end_are_the_whole_chat(kind: str, chat: list[dict[str, Any]]) -> None:
    text, trained = masked(kind, "qwen", chat)
    assert text == BY_NAME["qwen"].apply_chat_template(chat, tokenize=False)
    assert trained == masked("qwen3_5", "qwen", chat)[1]
    assert len(trained) == sum(message["role"] == "assistant" for message in chat)


@given(chat=chats())
def test_tools_change_the_head_alone(chat: list[dict[str, Any]]) -> None:
    whole = masked("qwen3_5", "qwen", chat, TOOLS)
    assert masked("qwen3", "qwen", chat, TOOLS) == whole


@given(chat=chats())
def test_of_a_model_that_thinks_only_thoughts_are_more(chat: list[dict[str, Any]]) -> None:
    text, trained = masked("qwen3", "qwen3", chat)
    whole = str(BY_NAME["qwen3"].apply_chat_template(chat, tokenize=False))
    assert text.replace(NO_THOUGHT, "") == whole.replace(NO_THOUGHT, "")
    assert [text.replace(NO_THOUGHT, "") for text in trained] == masked("qwen3_5", "qwen", chat)[1]
