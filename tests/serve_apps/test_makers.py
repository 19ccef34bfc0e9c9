"""The registry of makers: complete, and open for another one, as docs/code-map.md describes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.rollouts import Maker, RolloutCompleted, RolloutFailed, RolloutRequested
from serve_apps.rollouts.answerer import MakerSetup
from serve_apps.rollouts.makers import ANSWERERS, ELSEWHERE, make_answerers
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.plan import Plan
from tests.docs.pages import DOCS, ROOT
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

REFUSED = 2
"""Requests that the scripted server refuses at first."""


def test_each_maker_is_answered_in_one_place() -> None:
    assert not ANSWERERS.keys() & ELSEWHERE.keys()
    assert ANSWERERS.keys() | ELSEWHERE.keys() == set(Maker)
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).is_file()] == []
    assert all(answerer.maker is maker for maker, answerer in make_answerers(MakerSetup()).items())


class ScriptedServer:
    """Answers completions with the letters of the prompt's length, and refuses the first ones."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content))
        if len(self.bodies) <= REFUSED:
            return httpx.Response(503)
        tokens = list(range(65, 65 + self.bodies[-1]["max_tokens"]))
        log_probs = {"token_logprobs": [-0.5] * len(tokens)}
        choice = {"token_ids": tokens, "logprobs": log_probs, "finish_reason": "length", "text": bytes(tokens).decode()}
        return httpx.Response(200, json={"choices": [choice]})


async def test_another_maker_is_a_file_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose rollouts are all made by the page's example; its server is scripted."""
    page = (DOCS / "code-map.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0].replace("Maker.REMOTE", "Maker.OUTSIDE")
    defined: dict[str, Any] = {}
    exec(code, defined)
    server = ScriptedServer()
    client = partial(httpx.AsyncClient, transport=httpx.MockTransport(server))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    monkeypatch.setenv("VLLM_URL", "http://vllm")
    monkeypatch.setitem(ANSWERERS, Maker.OUTSIDE, defined["RemoteAnswerer"])
    monkeypatch.setattr(Plan, "maker", property(lambda _: Maker.OUTSIDE))
    async with Simulation(tmp_path, make_plan(steps=2)) as sim:
        sim.start_engine(Script())
        assert await sim.finish() is RunPhase.FINISHED
        requests, completed = sim.events(RolloutRequested), sim.events(RolloutCompleted)
        assert {request.maker for request in requests} == {Maker.OUTSIDE}
        assert len(sim.events(RolloutFailed)) == REFUSED, "its errors fail a rollout, which is requested again"
        assert len(server.bodies) == len(requests) == len(completed) + REFUSED
        for end in completed:
            assert (end.text[:3], end.spans[0].end, end.timings.generating > 0) == ("ABC", end.length, True)
