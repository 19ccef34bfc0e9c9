"""Test where a request continues its session, and why it begins a root."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.turns import RootReason
from serve_apps.rollouts.agents.attach import Chain, Chains, by_messages, why_root
from serve_apps.rollouts.agents.bridge import Bridge, Placement
from tests.agents.models import MODELS, tokenizer
from tests.agents.sessions import TOOLS, Message, Played, Recorded, Turn

SYSTEM: Message = {"role": "system", "content": "Be kind."}
ASKED: Message = {"role": "user", "content": "hm"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1, "b": []}'}}
ANSWER: Message = {"role": "assistant", "content": "I look.", "tool_calls": [CALL]}


def played(*messages: Message, answered: str = "yes", tools: tuple[Message, ...] = ()) -> Played:
    """A session of one turn."""
    session = Played(Bridge(tokenizer(MODELS[0])))
    answer(session, session.ask(messages, tools), answered)
    return session


def answer(session: Played, placed: Placement, text: str) -> Turn:
    ids = tokenizer(MODELS[0]).encode(text + "<|im_end|>", add_special_tokens=False)
    return session.record(placed, ids, {"role": "assistant", "content": text})


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    "same",
    [
        {"tool_calls": [CALL | {"id": "other"}]},
        {"tool_calls": [{"function": {"name": "f", "arguments": {"b": [], "a": 1}}}]},
        {"content": [{"type": "text", "text": "I "}, {"type": "text", "text": "look."}]},
        {"content": " I look.\n"},
        {"reasoning_content": "easy", "name": None},
    ],
)
def test_the_same_message_in_another_spelling(same: Message) -> None:
    assert Chains().of([ASKED, ANSWER | same]) == Chains().of([ASKED, ANSWER])


@pytest.mark.parametrize(
    "other",
    [
        {"content": "I looked."},
        {"tool_calls": []},
        {"tool_calls": [CALL, CALL]},
        {"tool_calls": [CALL | {"function": {"name": "f", "arguments": '{"a": 2}'}}]},
        {"tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}]},
        {"role": "user"},
    ],
)
def test_another_message(other: Message) -> None:
    chain, changed = Chains().of([ASKED, ANSWER]), Chains().of([ASKED, ANSWER | other])
    assert chain.links[0] == changed.links[0]
    assert chain.links[1] != changed.links[1]


def test_a_digest_is_of_the_frame_too() -> None:
    chain = Chains().of([SYSTEM, ASKED], TOOLS, {"a": 1})
    others = [
        Chains().of([SYSTEM, ASKED], TOOLS),
        Chains().of([SYSTEM, ASKED], (), {"a": 1}),
        Chains().of([ASKED], TOOLS, {"a": 1}),
    ]
    assert len({chain.frame, *(other.frame for other in others)}) == 4
    assert not set(chain.links) & {link for other in others for link in other.links}


def test_the_newest_of_equal_answers_goes_on() -> None:
    session = played(ASKED)
    answer(session, session.ask([ASKED]), "yes")
    answer(session, session.ask([ASKED]), "no")
    assert session.ask([ASKED, assistant("yes"), ASKED]).extends == 1
    assert session.ask([ASKED, assistant("no"), ASKED]).extends == 2


def test_a_session_goes_on_where_a_turn_was_answered_again() -> None:
    """Keep the turn of a lost answer, and continue the path from the other."""
    session = played(ASKED)
    chat = [ASKED, assistant("yes"), ASKED]
    lost, again = answer(session, session.ask(chat), "lost"), answer(session, session.ask(chat), "again")
    assert (lost.extends, again.extends) == (0, 0)
    assert session.ask([*chat, assistant("again"), ASKED]).extends == again.index


@pytest.mark.parametrize(
    ("messages", "tools", "root"),
    [
        ([SYSTEM, ASKED], (), RootReason.REPEAT),
        ([SYSTEM, {"role": "user", "content": "so far: nothing"}], (), RootReason.COMPACTION),
        ([SYSTEM, ASKED, assistant("no"), ASKED], (), RootReason.REWRITE),
        ([{"role": "system", "content": "Be a critic."}, ASKED], (), RootReason.SUBAGENT),
        ([ASKED], (), RootReason.SUBAGENT),
        ([SYSTEM, ASKED], TOOLS, RootReason.SUBAGENT),
        ([SYSTEM, ASKED, assistant("yes"), ASKED], (), None),
    ],
)
def test_why_a_root_begins(messages: list[Message], tools: tuple[Message, ...], root: RootReason | None) -> None:
    session = played(SYSTEM, ASKED)
    answer(session, session.ask([SYSTEM, ASKED, assistant("yes"), ASKED]), "and on")
    placed = session.ask(messages, tools)
    assert placed.root is root
    assert (placed.extends is None) == (root is not None)
    assert (placed.drift is None) == (placed.nearest is None) == (root is None)
    assert session.turns[0].messages == Chains().of([SYSTEM, ASKED]).links
    assert why_root([], Chains().of(messages)) is RootReason.FIRST


ROLES = st.sampled_from([ASKED, SYSTEM, assistant("a"), assistant("b"), ANSWER, {"role": "tool", "content": "r"}])


@given(st.lists(st.tuples(st.lists(ROLES, min_size=1, max_size=4), ROLES), max_size=6), st.lists(ROLES, max_size=6))
def test_the_deepest_beginning_is_found(turns: list[tuple[list[Message], Message]], messages: list[Message]) -> None:
    """Against a search that compares the messages themselves."""
    turns_, chats = list[Any](), list[list[Message]]()
    for index, (chat, answered) in enumerate(turns):
        chain = Chains().of(chat)
        turns_.append(Turn(index, None, chain.frame, chain.links, chain.answered(answered), None, None))  # type: ignore[arg-type]
        chats.append([*chat, answered])
    attachment = by_messages(Recorded(turns_), Chains().of(copy.deepcopy(messages)))
    depths = [len(chat) * (messages[: len(chat)] == chat) for chat in chats]
    # A turn whose answer is a system message is none: its frame came before it.
    depths = [
        depth * (Chains().of(chat).frame == Chains().of(messages).frame)
        for depth, chat in zip(depths, chats, strict=True)
    ]
    if attachment is None:
        assert not any(depths)
    else:
        assert attachment[1] == max(depths)
        assert chats[attachment[0].index] == messages[: attachment[1]]


def test_an_answer_to_no_messages_has_a_digest() -> None:
    chain = Chain("frame", ())
    assert chain.answered(assistant("a")) not in {"", "frame", chain.answered(assistant("b"))}
