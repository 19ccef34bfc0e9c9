"""A simulated run whose rollouts agents make, and its gateways: each a task that knows the log and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from openai import AsyncOpenAI

from schemas.arrays import unpack
from schemas.errors import LogUnavailable
from schemas.inbox import InboxReply
from schemas.rollouts import RolloutCompleted, RolloutRequested
from schemas.turns import TurnRecorded
from serve_apps.http.gateway.agents import AgentAccess, AgentDesk, SessionKeys
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.serving import HttpConfig, HttpServer, serve
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Sources
from serve_apps.rollouts.agents.bridge import Bridge
from serve_apps.rollouts.agents.parsing import ParserNames, Parsers
from serve_apps.rollouts.agents.setup import AgentRules, AgentSetup
from slime_events.algorithms.credit import CreditRule
from slime_events.core.sessions.session import Limits
from slime_events.core.tokens.trajectory import content_digest
from storage.cancellation import end_all
from storage.log import EventLog, Readable
from tests.agents.models import MODELS, tokenizer
from tests.simulation.seconds import check_seconds
from tests.simulation.simulation import Simulation, make_plan

ASKED: list[Any] = [{"role": "user", "content": "2+3="}]
URL = "http://127.0.0.1:8500"
TOKENIZER = tokenizer(MODELS[0])
RULES = AgentRules(
    credit=CreditRule(),
    limits=Limits(turn_s=20.0, session_s=60.0, idle_s=30.0),
    context=4000,
    seed=1,
    attempts=3,
    tokens_in_flight=1_000_000,
    turns_per_minute=6000,
    grades=True,
)


async def _offload(event: Any) -> Any:
    return event


def setup(rules: AgentRules = RULES) -> AgentSetup:
    """Return the setup of the tests' model, without parsers of tools."""
    return AgentSetup(
        rules,
        TOKENIZER,
        Bridge(TOKENIZER, longest=rules.longest),
        Parsers(ParserNames(), TOKENIZER),
        unpack,
        _offload,
        _offload,
    )


class Stage:
    """A simulation, its sources and its secret; `gateway` starts one more gateway."""

    def __init__(self, folder: Path, **plan: Any) -> None:
        self.name, self.is_on = "sim", True
        self.plan = make_plan(agents=True, **{"steps": 2, "groups": 1, "samples": 2, "in_prompt_order": False} | plan)
        evaluations = {name: ["one", "two"] for name in self.plan.evals}
        self.simulation = Simulation(folder, self.plan, evaluations=evaluations)
        self.sources, self.keys = Sources(folder), SessionKeys(b"secret")
        self.token = self.sources.issue("team")

    @contextlib.asynccontextmanager
    async def app(self, **rules: Any) -> AsyncIterator[FastAPI]:
        """A gateway of its own."""

        async def make(_: EventLog) -> AgentSetup:
            return setup(replace(RULES, **rules))

        async with AgentDesk(self.events, make) as desk:
            yield gateway_app(self, self.sources, GatewaySettings(), AgentAccess(desk, self.keys))

    @contextlib.asynccontextmanager
    async def gateway(self, **rules: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client of a gateway of its own."""
        async with self.app(**rules) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url=URL, timeout=30.0) as client:
                yield client

    @contextlib.asynccontextmanager
    async def served(self, port: int, **rules: Any) -> AsyncIterator[None]:
        """A gateway behind a socket, for clients in threads."""
        async with self.app(**rules) as app:
            with socket.create_server(("127.0.0.1", port)) as listening:
                server = HttpServer(HttpConfig(app, GatewaySettings()))
                serving = asyncio.create_task(serve(server, listening))
                try:
                    yield
                finally:
                    await end_all(serving)

    async def events(self) -> EventLog:
        if not self.is_on:
            raise LogUnavailable("run sim is not on")
        return self.simulation.log

    async def send(self, data: bytes, sender: str) -> InboxReply:
        raise NotImplementedError

    async def max_bytes(self) -> int:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[Readable]:
        yield self.simulation.log

    async def open(self, client: httpx.AsyncClient, **wish: Any) -> dict[str, Any]:
        """A session, or the refusal."""
        answer = await client.post(
            "/v1/runs/sim/sessions", json={"wait_s": 20} | wish, headers={"authorization": f"Bearer {self.token}"}
        )
        return dict(answer.json()) | {"status": answer.status_code}

    def check_turns(self) -> list[TurnRecorded]:
        """Every recorded turn is what its generation was: prompt and tokens. All of them."""
        check_seconds(self.simulation.log.records)
        calls = {event.sample: event for event in self.simulation.events(RolloutRequested)}
        by_sample = {event.sample: event for event in self.simulation.events(RolloutCompleted)}
        turns = self.simulation.events(TurnRecorded)
        wholes: dict[tuple[str, int], list[int]] = {}
        for turn in turns:
            assert turn.agent is not None
            before = [] if turn.extends is None else wholes[turn.sample, turn.extends]
            prompt = [*before, *unpack(turn.observed).tolist()]
            call = calls[turn.agent.call]
            assert (call.after and call.after.turn) == turn.extends
            assert call.prompt_length == len(prompt)
            assert prompt == [*before, *unpack(call.prompt).tolist()]
            completed = by_sample[turn.agent.call]
            assert turn.length == completed.length == len(unpack(turn.tokens))
            assert completed.digest == digest_of(turn)
            wholes[turn.sample, turn.index] = [*prompt, *unpack(turn.tokens).tolist()]
        return turns

    def check_tokens_once(self) -> None:
        """No generated token is trained on twice, and none that no turn made."""
        for completed in self.simulation.events(RolloutCompleted):
            mask = [1] * completed.length if completed.loss_mask is None else unpack(completed.loss_mask).tolist()
            spans = {at for span in completed.spans for at in range(span.start, span.end)}
            assert all(at in spans for at, trained in enumerate(mask) if trained)


def digest_of(turn: TurnRecorded) -> str:
    """Return the digest of a turn, computed like its generation's."""
    return content_digest(unpack(turn.tokens), unpack(turn.log_probs))


def openai_of(client: httpx.AsyncClient, session: dict[str, Any], **more: Any) -> AsyncOpenAI:
    """An agent that knows the base URL alone."""
    return AsyncOpenAI(base_url=session["base_url"], api_key="none", http_client=client, **more)


async def ask(client: httpx.AsyncClient, session: dict[str, Any], messages: Sequence[Any]) -> dict[str, Any]:
    """Ask a chat, and return the answer as a message that continues it."""
    body = {"model": "any", "messages": messages}
    answer = await client.post(f"{session['base_url']}/chat/completions", json=body)
    return dict(answer.json()["choices"][0]["message"])


async def seal(client: httpx.AsyncClient, session: dict[str, Any], **wish: Any) -> httpx.Response:
    """Seal a session like the harness."""
    where, key = f"/v1/sessions/{session['session']}", session["control_key"]
    return await client.post(f"{where}/seal", json=wish, headers={"authorization": f"Bearer {key}"})


async def state(client: httpx.AsyncClient, session: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a session as the harness sees it."""
    headers = {"authorization": f"Bearer {session['control_key']}"}
    return dict((await client.get(f"/v1/sessions/{session['session']}", headers=headers)).json())
