"""The Python clients over a gateway: what they send and receive, and what they do while nobody answers."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.errors import AccessDenied, InboxFull, LogUnavailable, RunIsOver, RunNotFound
from schemas.inbox import Fate, InboxPrompt
from schemas.outside import OutsideGroup, OutsideReward, OutsideSample
from schemas.submission import LineProblem
from serve_apps.http.gateway.app import gateway_app
from slime_events import AsyncGatewayClient, GatewayClient
from slime_events.core.run.run_folder import RUNS_DIR, RunFolder
from slime_events.core.state.run import RunPhase
from tests.gateway.test_gateway import Gateway
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

URL = "http://127.0.0.1:8500"


@pytest.fixture
async def simulation(tmp_path: Path) -> AsyncIterator[Simulation]:
    async with Simulation(tmp_path, make_plan(max_staleness=1, in_prompt_order=False)) as simulation:
        yield simulation


def client(gateway: Gateway, **more: Any) -> AsyncGatewayClient:
    token = gateway.sources.issue("python")
    app = gateway_app(gateway.run, gateway.sources, gateway.settings)
    options: dict[str, Any] = {"transport": httpx.ASGITransport(app)} | more
    return AsyncGatewayClient(URL, "sim", token, **options)


async def test_a_prompt_is_followed_to_its_version(simulation: Simulation, tmp_path: Path) -> None:
    async with client(Gateway(simulation, tmp_path / "gateway")) as python:
        taken = await python.submit([InboxPrompt("mine", "1+1", label="2"), {"prompt": 7}, {"prompt": "2+2"}])
        assert (taken.accepted, taken.refused) == (2, 1)
        assert [(error.line, error.field) for error in taken.errors] == [(2, "prompt")]
        simulation.start_engine(Script(chunk=8))
        fates = [fate async for fate in python.follow(taken.groups[0].group, every_s=0.01)]
        assert await simulation.finish() is RunPhase.FINISHED
        assert (fates[-1].fate, fates[-1].key) == (Fate.TRAINED, "mine")
        assert all(fate != other for fate, other in itertools.pairwise(fates))
        with pytest.raises(RunNotFound):
            await python.fate("inbox-0123456789abcdef")


async def test_groups_and_rewards_are_sent_as_structs(simulation: Simulation, tmp_path: Path) -> None:
    async with client(Gateway(simulation, tmp_path / "gateway")) as python:
        wrong = OutsideGroup("g", "1+1", samples=[OutsideSample(text="2", reward=1.0)])
        taken = await python.trajectories([wrong])
        assert [error.field for error in taken.errors] == ["samples"]
        taken = await python.rewards([OutsideReward("inbox-1-s0", 1.0)])
        assert [error.field for error in taken.errors] == ["sample"]


async def test_a_revoked_token_is_no_reason_to_wait(simulation: Simulation, tmp_path: Path) -> None:
    gateway = Gateway(simulation, tmp_path / "gateway")
    async with client(gateway) as python:
        gateway.sources.revoke("python")
        with pytest.raises(AccessDenied):
            await python.submit([{"prompt": "a"}])


def answers(*codes: int) -> Iterator[httpx.Response]:
    for code in codes:
        body = {"accepted": 1, "refused": 0, "groups": [], "errors": []} if code == 202 else {"error": "later"}
        yield httpx.Response(code, json=body, headers={"retry-after": "0"} if code in (429, 503) else {})


@contextmanager
def scripted(*codes: int) -> Iterator[tuple[httpx.MockTransport, list[bytes]]]:
    """0: the connection breaks."""
    replies, bodies, left = answers(*(code for code in codes if code)), list[bytes](), list(codes)

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(request.content)
        if left.pop(0) == 0:
            raise httpx.ReadError("gone")
        return next(replies)

    yield httpx.MockTransport(handle), bodies
    assert left == []


@pytest.mark.parametrize("codes", [(202,), (503, 202), (0, 429, 0, 202)])
def test_the_same_is_sent_until_there_is_an_answer(codes: tuple[int, ...]) -> None:
    with scripted(*codes) as (transport, bodies), GatewayClient(URL, "sim", "t", transport=transport) as python:
        assert python.submit([{"key": "k", "prompt": "a"}]).accepted == 1
    assert bodies == [b'{"key":"k","prompt":"a"}'] * len(codes)


@pytest.mark.parametrize(("code", "error"), [(429, InboxFull), (503, LogUnavailable), (0, LogUnavailable)])
def test_it_does_not_wait_for_ever(code: int, error: type[Exception]) -> None:
    with scripted(code) as (transport, _), pytest.raises(error):
        GatewayClient(URL, "sim", "t", transport=transport, wait_s=-1.0).submit([{"prompt": "a"}])


def test_a_run_that_is_over_is_not_asked_again() -> None:
    with scripted(0, 409) as (transport, _), pytest.raises(RunIsOver, match="later"):
        GatewayClient(URL, "sim", "t", transport=transport).submit([{"prompt": "a"}])


def test_a_key_that_stands_for_something_else_is_in_the_result() -> None:
    error = {"line": 1, "field": "key", "message": "other_content: ..."}
    body = {"accepted": 0, "refused": 1, "groups": [], "errors": [error]}
    transport = httpx.MockTransport(lambda _: httpx.Response(409, json=body))
    with GatewayClient(URL, "sim", "t", transport=transport) as python:
        assert python.submit([{"key": "k", "prompt": "a"}]).errors == [LineProblem(**error)]


@pytest.mark.parametrize(("phase", "error"), [("finished", RunIsOver), ("failed", LogUnavailable)])
def test_nobody_is_waited_for_where_the_folder_says_that_the_run_is_over(
    phase: str,
    error: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(RUNS_DIR, "over")
    folder.settings.write_text('[run]\nrun = "over"\n[rollout]\nnum_rollout = 2\n')
    folder.summary.write_text(json.dumps({"phase": phase, "steps": 2}))
    with scripted(*[0] * (1 if error is RunIsOver else 2)) as (transport, _), pytest.raises(LogUnavailable) as raised:
        GatewayClient(URL, "over", "t", transport=transport, wait_s=0.1).submit([{"prompt": "a"}])
    assert type(raised.value) is error
    assert ("retrying for" in caplog.text) == (error is LogUnavailable)


def test_both_clients_have_the_same_methods() -> None:
    names = [{name for name in vars(kind) if not name.startswith("_")} for kind in (GatewayClient, AsyncGatewayClient)]
    assert names[0] == names[1]
    assert LineProblem.__struct_fields__ == ("line", "field", "message")
    assert asyncio.iscoroutinefunction(AsyncGatewayClient.submit)
