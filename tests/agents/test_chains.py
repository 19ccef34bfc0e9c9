"""Test the links of a session's requests, how far ids go along its turns, and why a root begins: the edges of each."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from schemas.turns import RootReason
from serve_apps.rollouts.agents import attach
from serve_apps.rollouts.agents.attach import Chain, Chains, Message, walk, why_root
from tests.agents.sessions import TOOLS, Turn
from tests.agents.test_attach import ANSWER, ASKED, CALL, SYSTEM, assistant


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A digest for each message that is linked from now on."""
    links, link = list[str](), attach._link

    def noted(last: str, message: Message) -> str:
        links.append(link(last, message))
        return links[-1]

    monkeypatch.setattr(attach, "_link", noted)
    return links


def test_what_was_linked_is_not_linked_again(linked: list[str]) -> None:
    chains, chat = Chains(), [SYSTEM, ASKED, assistant("yes"), user("and?")]

    def linked_of(messages: list[Message]) -> int:
        linked.clear()
        chain = chains.of(messages)
        count = len(linked)
        assert chain == Chains().of(messages)
        return count

    assert linked_of(chat) == 4
    assert linked_of(chat) == 0
    assert linked_of(copy.deepcopy(chat)) == 0
    assert linked_of([*chat, assistant("no"), user("so")]) == 2
    assert linked_of([*copy.deepcopy(chat[:3]), user("or?")]) == 1
    assert linked_of([*chat[:2], assistant("maybe")]) == 1
    assert linked_of(chat[:3]) == 0
    assert linked_of([SYSTEM, user("another")]) == 1
    assert linked_of([{"role": "system", "content": "Be brief."}, *chat[1:]]) == 4


def test_agents_that_ask_in_turns_link_what_is_new_alone(linked: list[str]) -> None:
    chains, chats = Chains(), [[SYSTEM, user(str(number)), assistant("yes")] for number in range(4)]
    for chat in chats:
        chains.of(chat)
    for chat in chats:
        linked.clear()
        chains.of([*chat, ASKED])
        assert len(linked) == 1


def test_what_is_linked_depends_on_the_frame() -> None:
    chains, chat = Chains(), [ASKED, assistant("yes"), ASKED]
    for tools, template in ((), None), (TOOLS, None), ((), {"a": 1}), ((), None), ((), {}):
        assert chains.of(chat, tools, template) == Chains().of(chat, tools, template)
    assert chains.of(chat, (), {}) == chains.of(chat, (), None)


def link_of(message: Message) -> str:
    return Chains().of([ASKED, message]).links[1]


def called(**function: Any) -> Message:
    return ANSWER | {"tool_calls": [{"function": function}]}


PICTURE = {"type": "image_url", "image_url": {"url": "http://a"}}
SAME: list[tuple[Message, Message]] = [
    ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
    ({"role": "tool", "content": "a", "tool_call_id": "c"}, {"role": "tool", "content": "a", "name": "f"}),
    ({"role": "user", "content": None}, {"role": "user", "content": ""}),
    ({"role": "user", "content": "a", "name": None}, {"role": "user", "content": "a", "name": ""}),
    ({"role": "user", "content": [{"text": "a"}, {"text": "b"}]}, {"role": "user", "content": "ab"}),
    (assistant("a") | {"tool_calls": None}, assistant("a") | {"tool_calls": []}),
    ({"role": "assistant", "tool_calls": [CALL]}, assistant("") | {"tool_calls": [CALL["function"]]}),
]
OTHER: list[tuple[Message, Message]] = [
    ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}),
    ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "bob"}),
    ({"role": "user", "content": "a "}, {"role": "user", "content": "a"}),
    ({"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}),
    ({"role": "tool", "content": "a"}, {"role": "user", "content": "a"}),
    ({"role": "user", "content": [{"text": "a"}, PICTURE]}, {"role": "user", "content": [{"text": "a"}]}),
    ({"role": "user", "content": ["text"]}, {"role": "user", "content": "text"}),
    (called(name="f", arguments="{"), called(name="f", arguments="[")),
    (called(name="f"), called(name="g")),
    (called(arguments={}), called(arguments=1)),
]


@pytest.mark.parametrize(("first", "other"), SAME)
def test_the_same_message(first: Message, other: Message) -> None:
    assert link_of(first) == link_of(other)


@pytest.mark.parametrize(("first", "other"), OTHER)
def test_not_the_same_message(first: Message, other: Message) -> None:
    assert link_of(first) != link_of(other)


def test_the_systems_at_the_head_make_the_frame() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    chain = Chains().of([SYSTEM, developer, ASKED])
    assert chain.frame != Chains().of([SYSTEM, ASKED]).frame
    assert chain.frame == Chains().of([SYSTEM, developer, user("another"), SYSTEM]).frame
    assert Chains().of([SYSTEM]).frame == Chains().of([SYSTEM, ASKED]).frame
    assert len(chain.links) == 3


def turn(index: int, extends: int | None, observed: list[int], generated: list[int], **more: Any) -> Turn:
    ids = [np.array(part, np.int32) for part in (observed, generated)]
    return Turn(index, extends, more.get("frame", ""), more.get("messages", ()), "", *ids)


FOREST = [
    turn(0, None, [1, 2], [3]),
    turn(1, 0, [4], [5, 6]),
    turn(2, None, [1, 2], [3]),
    turn(3, 1, [7], [8]),
    turn(4, None, [9], [1]),
]
NOWHERE = (None, 0)


@pytest.mark.parametrize(
    ("ids", "goes_on", "nearest"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8, 0], (3, 8), (3, 8)),
        ([1, 2, 3, 4, 5, 6, 7, 8], (3, 8), (3, 8)),
        ([1, 2, 3, 4, 5, 6, 7, 0], (1, 6), (3, 7)),
        ([1, 2, 3, 4, 5, 0], (2, 3), (1, 5)),
        ([1, 2, 3, 0], (2, 3), (2, 3)),
        ([1, 2, 3], (2, 3), (2, 3)),
        ([1, 2], NOWHERE, (2, 2)),
        ([1, 0], NOWHERE, (2, 1)),
        ([9, 1, 5], (4, 2), (4, 2)),
        ([9, 5], NOWHERE, (4, 1)),
        ([5], NOWHERE, (4, 0)),
        ([], NOWHERE, (4, 0)),
    ],
)
def test_how_far_ids_go(ids: list[int], goes_on: tuple[int | None, int], nearest: tuple[int, int]) -> None:
    for turns in (FOREST, FOREST[::-1]):
        walked = walk(turns, np.array(ids, np.int32))
        assert (None if walked.turn is None else walked.turn.index, walked.length) == goes_on
        assert (walked.nearest, walked.drift) == nearest
    assert walk([], np.array(ids, np.int32)) == attach.TokenMatch()


def test_why_a_root_begins_beside_others() -> None:
    """Fewer messages than the longest of its own frame had: it was made shorter."""
    own = Chains().of([SYSTEM, ASKED])
    turns = [
        turn(0, None, [], [], frame=own.frame, messages=("a", "b")),
        turn(1, 0, [], [], frame=own.frame, messages=("c",)),
        turn(2, None, [], [], frame="another", messages=tuple("defghi")),
    ]
    for count, why in ((3, RootReason.COMPACTION), (4, RootReason.REWRITE), (5, RootReason.REWRITE)):
        assert why_root(turns, Chain(own.frame, tuple("vwxyz"[:count]))) is why
    assert why_root(turns, Chain(own.frame, ("v", "c"))) is RootReason.REPEAT
    assert why_root(turns, Chain(own.frame, ("v", "i"))) is RootReason.COMPACTION
    assert why_root(turns, Chain("third", ("v", "c"))) is RootReason.SUBAGENT
    assert why_root([], own) is RootReason.FIRST
