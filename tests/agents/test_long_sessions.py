"""Test a long session: what is known of its requests and turns saves work, and changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_apps.rollouts.agents import reading
from serve_apps.rollouts.agents.agent_request import AgentRequest, BadField, Dialect, DialectName
from serve_apps.rollouts.agents.attach import Chains
from serve_apps.rollouts.agents.bridge import Bridge
from serve_apps.rollouts.agents.dialects import DIALECTS
from serve_apps.rollouts.agents.dialects.fields import read_object
from serve_apps.rollouts.agents.live_session import LoadedTurn
from serve_apps.rollouts.agents.reading import AllRequests, Requests
from slime_events.core.sessions.agent_requests import request_body
from slime_events.core.sessions.session import read_session
from slime_events.core.sessions.turn_paths import TokenPath
from storage.memory_log import MemoryLog
from tests.agents.lone_session import SAMPLE, LoneSession
from tests.agents.sessions import Recorded
from tests.agents.stage import TOKENIZER
from tests.agents.test_reading import MINIMAL
from tests.agents.whole import read_whole

PATH = "/v1/any"
_text = st.sampled_from(["a", "b", "", 'é"'])
_function = {"name": "f", "arguments": "{}"}
_call = st.fixed_dictionaries({"id": _text, "type": st.just("function"), "function": st.just(_function)})
_parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": _text}), max_size=2)
_user = st.sampled_from(["user"] * 8 + ["assistant"] * 8 + ["nobody"])
_result = {"type": "tool_result", "tool_use_id": "c", "content": "r"}
_called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
_output = {"type": "function_call_output", "call_id": "c", "output": "r"}
CHAT = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system"] * 8 + ["nobody"]), "content": _text | _parts}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": _text, "tool_calls": st.lists(_call, max_size=2)}),
    st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": st.just("c"), "content": _text}),
)
MESSAGES = st.one_of(
    st.fixed_dictionaries({"role": _user, "content": _text | _parts}),
    st.just({"role": "user", "content": [_result, {"type": "text", "text": "t"}]}),
)
RESPONSES = st.one_of(
    st.fixed_dictionaries({"role": _user, "content": _text}),
    st.sampled_from([_called, _output, {"type": "reasoning", "summary": [], "content": []}]),
)
ITEMS = {DialectName.CHAT: CHAT, DialectName.MESSAGES: MESSAGES, DialectName.RESPONSES: RESPONSES}


@st.composite
def conversations(draw: st.DrawFn, item: st.SearchStrategy[Any]) -> list[list[Any]]:
    """The items of one request after the other: more of them, changed ones, fewer, the same again, or others."""
    now, past = draw(st.lists(item, min_size=1, max_size=3)), []
    for _ in range(draw(st.integers(2, 6))):
        past.append(list(now))
        match draw(st.sampled_from(["more", "more", "more", "change", "change", "fewer", "same", "others"])):
            case "more":
                now += draw(st.lists(item, min_size=1, max_size=3))
            case "change":
                at = draw(st.integers(0, len(now) - 1))
                now[at] = now[at] | {"content": draw(_text)} if "content" in now[at] else draw(item)
            case "fewer":
                now = now[draw(st.integers(0, len(now) - 1)) :]
            case "others":
                now = draw(st.lists(item, min_size=1, max_size=2))
    return past


@settings(max_examples=200)
@given(data=st.data(), name=st.sampled_from(list(ITEMS)))
def test_a_request_is_read_as_if_it_were_the_first(data: st.DataObject, name: DialectName) -> None:
    dialect, requests, style = DIALECTS[name], Requests(), data.draw(STYLES)
    for given_items in data.draw(conversations(ITEMS[name])):
        body = _body(dialect, given_items, style, data.draw)
        digest = hashlib.sha256(b"body:" + PATH.encode() + body).hexdigest()
        first = _read(dialect, lambda dialect, _, body: (read_whole(dialect, body), ""), body)[:1]
        assert _read(dialect, requests.read, body) in (first, (*first, digest))


def _read(
    dialect: Dialect, read: Callable[[Dialect, str, bytes], tuple[AgentRequest, str]], body: bytes
) -> tuple[Any, ...]:
    """Return what is read, or what is wrong. The body that is repeated to a client is without its items."""
    try:
        request, digest = read(dialect, PATH, body)
    except BadField as error:
        return ((error.field, error.message),)
    return replace(request, body={key: value for key, value in request.body.items() if key != dialect.items}), digest


@pytest.mark.parametrize("name", ITEMS)
def test_what_was_read_is_not_decoded_again(name: DialectName, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[int]()

    def noted(body: bytes) -> dict[str, Any]:
        decoded.append(len(body))
        return read_object(body)

    monkeypatch.setattr(reading, "read_object", noted)
    dialect, requests = DIALECTS[name], Requests()
    items = [{"role": "user", "content": "x" * 1000}]
    for number in range(40):
        body = json.dumps(MINIMAL[name] | {dialect.items: items, "temperature": 0.5}).encode()
        requests.read(dialect, PATH, body)
        if number % 7 == 3:  # as a client that marks its newest messages for a cache
            items[-1] = items[-1] | {"content": "y" * 1000}
        items += [{"role": "assistant", "content": "z" * 500}, {"role": "user", "content": "x" * 1000}]
    assert len(decoded) == 41  # the first twice, to see where its items are
    assert max(decoded[2:]) < 4500


STYLES = st.fixed_dictionaries(
    {"separators": st.sampled_from([None, (",", ":")]), "ensure_ascii": st.booleans(), "sort_keys": st.booleans()}
)
"""Of one client, as arguments of `json.dumps`."""


def _body(dialect: Dialect, items: list[Any], style: dict[str, Any], draw: Any) -> bytes:
    """Build a body with the items in another field too, or another field than before, or a field twice."""
    rest = draw(st.sampled_from([{}, {}, {"temperature": 0.5}, {"metadata": {dialect.items: items}}]))
    text = json.dumps(MINIMAL[dialect.name] | rest | {dialect.items: items}, **style)
    if draw(st.integers(0, 3)) == 0:
        text = text[:-1] + f', "{dialect.items}": {json.dumps(items[:1])}}}'
    return text.encode()


@given(conversations(CHAT))
def test_links_are_those_of_a_chain_that_is_made_anew(chats: list[list[Any]]) -> None:
    chains = Chains()
    for chat in chats:
        assert chains.of(chat) == Chains().of(chat)


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 3), max_size=5)), max_size=30))
def test_paths_that_share_room_stay_what_they_are(steps: list[tuple[int, list[int]]]) -> None:
    """Continue from any earlier path in each step."""
    paths, plain = [TokenPath()], [list[int]()]
    for at, tokens in steps:
        paths.append(paths[at % len(paths)].then(np.array(tokens, np.int32)))
        plain.append([*plain[at % len(plain)], *tokens])
        assert [path.whole().tolist() for path in paths] == plain


def test_sessions_over_the_limit_are_read_again() -> None:
    kept, dialect = AllRequests(most=1000), DIALECTS[DialectName.CHAT]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * 600}]}).encode()
    first = kept.of("one")
    first.read(dialect, "/", body)
    assert kept.of("one") is first
    kept.of("two").read(dialect, "/", body)
    kept.of("two")
    assert kept.of("one") is not first
    second = kept.of("two")
    kept.forget("two")
    assert kept.of("two") is not second


MOVES = st.sampled_from(["more", "more", "more", "change", "fewer", "same", "others", "gateway"])


@settings(max_examples=12, deadline=None)
@given(moves=st.lists(st.tuples(MOVES, st.integers(0, 20)), min_size=2, max_size=9))
def test_the_log_holds_what_was_asked_and_what_engines_were_given(moves: Sequence[tuple[str, int]]) -> None:
    """Whatever a session's requests have in common, whichever gateway and whichever engine is asked."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_check(Path(folder), moves))


async def _check(folder: Path, moves: Sequence[tuple[str, int]]) -> None:
    log = MemoryLog("lone")
    lone = LoneSession(log, folder, answer=6)
    await lone.begin()
    async with lone.engine() as engine, lone.engine() as other, lone.gateway() as first, lone.gateway() as second:
        url = f"{(await lone.open(first))['base_url']}/chat/completions"
        clients, bodies = [first, second], list[bytes]()
        chat: list[Any] = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hm"}]
        for move, number in [("same", 0), *moves]:
            chat = _moved(chat, move, number)
            if move == "gateway":
                clients.reverse()
            bodies.append(json.dumps({"model": "m", "messages": chat, "max_tokens": 6}).encode())
            answer = await clients[0].post(url, content=bodies[-1])
            assert answer.status_code == 200, answer.text
            chat = [*chat, answer.json()["choices"][0]["message"]]
        session = await read_session(log, SAMPLE)
        loaded = [LoadedTurn.of(session.turns[index], lone.fetch) for index in sorted(session.turns)]
        assert len(loaded) == len(bodies)
        given_prompts = {engine.id: engine.prompts, other.id: other.prompts}
        for turn, body in zip(loaded, bodies, strict=True):
            assert await request_body(log, SAMPLE, turn.index, lone.fetch) == body
            request = read_whole(DIALECTS[DialectName.CHAT], body)
            placed = Bridge(TOKENIZER).place(request, Recorded(loaded[: turn.index]))
            assert (turn.extends, turn.agent.root, turn.agent.rule) == (placed.extends, placed.root, placed.rule)
            assert (turn.messages, turn.frame) == (placed.messages, placed.chain.frame)
            assert turn.observed.tolist() == placed.observed.tolist()
            assert given_prompts[turn.event.engine][turn.agent.call].tolist() == _prompt(loaded, turn)


async def test_other_engines_and_gateways_go_on_with_a_session(tmp_path: Path) -> None:
    """Know nothing but the log of the engines and gateways before."""
    lone, prompts = LoneSession(MemoryLog("lone"), tmp_path, answer=6), dict[str, list[int]]()
    await lone.begin()
    chat: list[Any] = [{"role": "user", "content": "hm"}]
    for _ in range(3):
        async with lone.engine() as engine, lone.gateway() as client:
            url = f"{(await lone.open(client))['base_url']}/chat/completions"
            for _ in range(2):
                answer = await client.post(url, json={"model": "m", "messages": chat})
                chat += [answer.json()["choices"][0]["message"], {"role": "user", "content": "and?"}]
        prompts |= {sample: prompt.tolist() for sample, prompt in engine.prompts.items()}
    session = await read_session(lone.log, SAMPLE)
    loaded = [LoadedTurn.of(session.turns[index], lone.fetch) for index in sorted(session.turns)]
    assert [turn.extends for turn in loaded] == [None, 0, 1, 2, 3, 4]
    assert [prompts[turn.agent.call] for turn in loaded] == [_prompt(loaded, turn) for turn in loaded]


def _moved(chat: list[Any], move: str, number: int) -> list[Any]:
    question = {"role": "user", "content": f"and {number}?"}
    match move:
        case "change":
            at = number % len(chat)
            return [*chat[:at], chat[at] | {"content": f"not {number}"}, *chat[at + 1 :], question]
        case "fewer":
            return [*chat[:1], *chat[-(number % len(chat)) :], question]
        case "others":
            return [{"role": "user", "content": f"What is {number}?"}]
        case "same":
            return chat
        case _:
            return [*chat, question]


def _prompt(loaded: Sequence[LoadedTurn], turn: LoadedTurn) -> list[int]:
    before = [] if turn.extends is None else loaded[turn.extends]
    path = [] if isinstance(before, list) else [*_prompt(loaded, before), *before.generated.tolist()]
    return [*path, *turn.observed.tolist()]
