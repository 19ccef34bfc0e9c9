"""Requests of agents that no engine gets: 400 with the reason, and the next request is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.arrays import unpack
from schemas.errors import InvalidValue
from schemas.rollouts import FailureKind, RolloutFailed, RolloutProgressed, RolloutRequested, StopReason
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.engines.limits import EngineLimits
from serve_apps.http.gateway.agents import AgentAccess, AgentDesk
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.rollouts.agents.parsing import ParserNames, Parsers
from storage.log import EventLog
from tests.agents.stage import ASKED, RULES, TOKENIZER, URL, Stage, setup
from tests.scripted_engine import Script, ScriptedEngine

VOCABULARY = len(TOKENIZER)


class Words:
    """Grammars that knows one that does not compile."""

    async def check(self, kind: str, text: str) -> None:
        if "(" in text:
            raise InvalidValue(f"{kind}: the parenthesis is not closed")

    def close(self) -> None: ...


@contextlib.asynccontextmanager
async def gateway(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    """Start a gateway with engines that have a grammar back-end and a vocabulary."""

    async def make(_: EventLog) -> Any:
        parsers = Parsers(ParserNames(grammar=True), TOKENIZER)
        limits = EngineLimits(VOCABULARY, Words())  # type: ignore[arg-type]
        return replace(setup(replace(RULES)), parsers=parsers, engine=limits)

    async with AgentDesk(stage.events, make) as desk:
        app = gateway_app(stage, stage.sources, GatewaySettings(), AgentAccess(desk, stage.keys))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=URL, timeout=30.0) as client:
            yield client


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    async with stage.simulation:
        stage.simulation.start_engine(Script(chunk=4, vocabulary=VOCABULARY))
        yield stage


async def answers(client: httpx.AsyncClient, session: dict[str, Any], path: str, body: dict[str, Any]) -> Any:
    url = session["base_url"].removesuffix("/v1")
    return await client.post(url + path, json=body)


CHAT, GENERATE = "/v1/chat/completions", "/generate"
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "("}}}
BAD: list[tuple[str, dict[str, Any], str]] = [
    (GENERATE, {"input_ids": [99999]}, f"token 99999 is not in the model's vocabulary of {VOCABULARY}"),
    (GENERATE, {"input_ids": [1, -1]}, "input_ids"),
    (GENERATE, {"input_ids": [1.5]}, "input_ids"),
    (GENERATE, {"input_ids": [True]}, "input_ids"),
    (GENERATE, {"input_ids": [[1]]}, "input_ids"),
    (GENERATE, {"input_ids": [2**31]}, "input_ids"),
    (GENERATE, {"input_ids": [2**63]}, "input_ids"),
    (GENERATE, {"text": "a", "sampling_params": {"stop_token_ids": [VOCABULARY]}}, "stop_token_ids"),
    (GENERATE, {"text": "a", "sampling_params": {"regex": "((("}}, "parenthesis"),
    (GENERATE, {"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 8}}, "min_new_tokens"),
    (CHAT, {"stop_token_ids": [2**31 - 1], "min_tokens": 3}, "stop_token_ids"),
    (CHAT, {"min_tokens": 1000}, "min_new_tokens"),
    (CHAT, {"stop": [f"s{n}" for n in range(33)]}, "at most 32"),
    (CHAT, {"regex": "(["}, "parenthesis"),
    (CHAT, {"ebnf": "root ::= ("}, "parenthesis"),
    (CHAT, {"response_format": SCHEMA}, "parenthesis"),
    (CHAT, {"regex": "a", "ebnf": "b"}, "not both"),
    (CHAT, {"regex": "(", "stream": True}, "parenthesis"),
]


async def test_what_no_engine_takes_is_400_and_costs_nothing_else(stage: Stage) -> None:
    async with gateway(stage) as client:
        session = await stage.open(client)
        for path, more, reason in BAD:
            body = ({"messages": ASKED} if path == CHAT else {}) | {"model": "m"} | more
            answer = await answers(client, session, path, body)
            assert answer.status_code == 400, (more, answer.text)
            assert reason in answer.text.replace('\\"', '"'), (more, answer.text)
        plain = await answers(client, session, CHAT, {"model": "m", "messages": ASKED, "max_tokens": 4})
        assert plain.status_code == 200
        ids = {"input_ids": [0, VOCABULARY - 1], "sampling_params": {"max_new_tokens": 4}}
        assert (await answers(client, session, GENERATE, ids)).status_code == 200
    assert len(stage.simulation.events(RolloutRequested, purpose="call")) == 2, "no engine heard of the others"
    assert not stage.simulation.events(RolloutFailed)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


async def test_whatever_ids_come_an_engine_gets_those_of_the_model(stage: Stage) -> None:
    async with gateway(stage) as client:
        session = await stage.open(client)

        @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(JSON, min_size=1, max_size=3), st.sampled_from(["input_ids", "stop_token_ids"]))
        async def ask(values: list[Any], where: str) -> None:
            params: dict[str, Any] = {"max_new_tokens": 1}
            body = {"input_ids": values} if where == "input_ids" else {"input_ids": [1]}
            body["sampling_params"] = params | ({} if where == "input_ids" else {"stop_token_ids": values})
            answer = await answers(client, session, GENERATE, body)
            is_valid = all(type(token) is int and 0 <= token < VOCABULARY for token in values)
            assert answer.status_code == (200 if is_valid else 400), answer.text

        await _run(ask)
    for request in stage.simulation.events(RolloutRequested, purpose="call"):
        assert all(0 <= token < VOCABULARY for token in unpack(request.prompt).tolist())


async def _run(test: Any) -> None:
    """Hypothesis draws in a thread, and each example runs here."""
    inner, loop = test.hypothesis.inner_test, asyncio.get_running_loop()

    def in_loop(*args: Any, **more: Any) -> None:
        asyncio.run_coroutine_threadsafe(inner(*args, **more), loop).result(60)

    test.hypothesis.inner_test = in_loop
    await asyncio.to_thread(test)


class Refusing(ScriptedEngine):
    """Aborts, with a token and no log-prob, as SGLang does what it does not take."""

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        async for delta in super().generate(request):
            yield replace(delta, log_probs=delta.log_probs[:0], finish=StopReason.ABORT)
            return


async def test_an_engine_that_aborts_without_log_probs_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Refusing(Script(chunk=1)))
        session = await stage.open(client)
        answer = await answers(client, session, CHAT, {"model": "m", "messages": ASKED, "max_tokens": 4})
        assert answer.status_code == 502
    assert not stage.simulation.events(RolloutProgressed)
    assert {event.kind for event in stage.simulation.events(RolloutFailed)} == {FailureKind.ENGINE}
