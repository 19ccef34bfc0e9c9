"""Requests of a session that are kept: each agent of it has one place, however often it asks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve_apps.rollouts.agents import reading
from serve_apps.rollouts.agents.agent_request import DialectName
from serve_apps.rollouts.agents.dialects import DIALECTS
from serve_apps.rollouts.agents.dialects.fields import read_object
from serve_apps.rollouts.agents.reading import Requests

CHAT = DIALECTS[DialectName.CHAT]


class Session:
    """Its agents, by name; `decoded`: bytes of each request that were."""

    def __init__(self) -> None:
        self._requests, self._chats = Requests(), dict[str, list[Any]]()
        self.decoded = list[int]()

    def noted(self, body: bytes) -> dict[str, Any]:
        self.decoded.append(len(body))
        return read_object(body)

    def begin(self, agent: str, *before: Any) -> None:
        """Its chat, with more than 3000 bytes of its own behind these messages."""
        self._chats[agent] = [*before, {"role": "user", "content": agent * 3000}]

    def ask(self, agent: str) -> int:
        """Continue the chat; return the most bytes that were decoded at once."""
        self.decoded.clear()
        if agent not in self._chats:
            self.begin(agent)
        chat = self._chats[agent]
        request, _ = self._requests.read(CHAT, "/", json.dumps({"model": "m", "messages": chat}).encode())
        assert list(request.messages) == chat
        chat += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]
        return max(self.decoded)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    session_ = Session()
    monkeypatch.setattr(reading, "read_object", session_.noted)
    return session_


def test_four_agents_ask_in_turns(session: Session) -> None:
    assert all(session.ask(agent) > 3000 for agent in "abcd")
    for _ in range(3):
        assert all(session.ask(agent) < 1000 for agent in "abcd")


def test_one_that_asks_often_takes_no_place_of_another(session: Session) -> None:
    session.ask("a")
    session.ask("b")
    assert all(session.ask("a") < 1000 for _ in range(8))
    assert session.ask("b") < 1000


def test_the_fifth_is_read_whole_again(session: Session) -> None:
    for agent in "abcde":
        session.ask(agent)
    assert session.ask("a") > 3000


def test_agents_of_one_system_prompt_go_on_each_from_its_own(session: Session) -> None:
    """A short request of another one lies nearer in time, and has less in common."""
    system = {"role": "system", "content": "s" * 200}
    for agent in "ab":
        session.begin(agent, system)
        for _ in range(5):
            session.ask(agent)
    for agent in "abab":
        assert session.ask(agent) < 1000
