"""Test what a source's token allows, and how often its source may come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import InvalidValue
from schemas.inbox import PROMPTS, REWARDS, TRAJECTORIES
from schemas.prompts import PromptSubmitted
from serve_apps.http.gateway.app import gateway_app
from serve_apps.http.gateway.settings import GatewaySettings
from serve_apps.http.gateway.sources import Scope, Sources, scope_of
from serve_apps.rates import MANY, MINUTE_S, Rates
from slime_events.loop.prompts.outside import ITEMS
from tests.gateway.test_gateway import SimulatedRun
from tests.simulation.simulation import Simulation, make_plan

PROMPT = {"key": "k", "prompt": "a"}


def client_of(simulation: Simulation, sources: Sources, token: str) -> httpx.AsyncClient:
    app = gateway_app(SimulatedRun(simulation), sources, GatewaySettings())
    headers = {"authorization": f"Bearer {token}"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8500", headers=headers)


async def test_a_token_is_for_what_it_was_issued_for(tmp_path: Path) -> None:
    sources = Sources(tmp_path / "run")
    async with Simulation(tmp_path, make_plan()) as simulation:
        for mine in (PROMPTS, TRAJECTORIES, REWARDS):
            async with client_of(simulation, sources, sources.issue("quiz", [Scope(mine)])) as client:
                for kind in ITEMS:
                    answer = await client.post(f"/v1/runs/sim/{kind}", json={})
                    assert (answer.status_code == 403) is (kind != mine), (mine, kind)
        async with client_of(simulation, sources, sources.issue("quiz", [Scope.PROMPTS])) as client:
            taken = (await client.post("/v1/runs/sim/prompts", json=PROMPT)).json()["groups"][0]["group"]
            assert (await client.get(f"/v1/runs/sim/groups/{taken}")).status_code == 200, "its own, always"
        async with client_of(simulation, sources, sources.issue("quiz", [Scope.SESSIONS])) as client:
            refused = await client.post("/v1/runs/sim/prompts", json=PROMPT | {"key": "other"})
        assert refused.status_code == 403
        assert [event.source.key for event in simulation.events(PromptSubmitted, dataset="inbox")] == ["k"]


async def test_a_revoked_token_is_told_so_and_none_how_to_give_one(tmp_path: Path) -> None:
    sources, errors = Sources(tmp_path / "run"), list[str]()
    token = sources.issue("quiz")
    sources.revoke("quiz")
    async with Simulation(tmp_path, make_plan()) as simulation:
        for used_token in (token, ""):
            async with client_of(simulation, sources, token) as client:
                headers = {"authorization": f"Bearer {used_token}" if used_token else ""}
                answer = await client.post("/v1/runs/sim/prompts", json=PROMPT, headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                errors.append(answer.json()["error"])
    assert "revoked" in errors[0]
    assert "Authorization" in errors[1]


async def test_what_was_not_taken_stands_in_the_log_of_refusals(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = Sources(tmp_path / "run")
    async with (
        Simulation(tmp_path, make_plan()) as simulation,
        client_of(simulation, sources, sources.issue("quiz")) as client,
    ):
        answer = await client.post("/v1/runs/sim/prompts", json=[PROMPT, {"key": "b", "prompt": 7}])
    assert answer.status_code == 422
    (line,) = [record.getMessage() for record in caplog.records if record.getMessage().startswith("refused: 422")]
    assert "1 of 2, line 2: prompt: " in line


async def test_a_source_that_comes_too_often_is_asked_to_come_again(tmp_path: Path) -> None:
    sources = Sources(tmp_path / "run")
    token, other = sources.issue("quiz", per_minute=2), sources.issue("other")
    async with (
        Simulation(tmp_path, make_plan()) as simulation,
        client_of(simulation, sources, token) as client,
    ):
        answers = [await client.post("/v1/runs/sim/prompts", json=PROMPT) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [202, 202, 429]
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
        unlimited = await client.post("/v1/runs/sim/prompts", json=PROMPT, headers={"authorization": f"Bearer {other}"})
        assert unlimited.status_code == 202


def test_rights_outlive_a_token_that_is_replaced(tmp_path: Path) -> None:
    sources = Sources(tmp_path)
    sources.issue("quiz", [Scope.PROMPTS, Scope.REWARDS], per_minute=60)
    sources.issue("quiz")
    replaced = Sources(tmp_path).rights("quiz")
    assert (replaced.may, replaced.per_minute) == ((Scope.PROMPTS, Scope.REWARDS), 60)
    sources.issue("quiz", [Scope.SESSIONS])
    assert Sources(tmp_path).rights("quiz").may == (Scope.SESSIONS,)
    sources.revoke("quiz")
    sources.issue("quiz")
    assert Sources(tmp_path).rights("quiz").may is None, "a new source"


def test_a_file_of_before_rights_is_read_and_written_as_it_was(tmp_path: Path) -> None:
    token = Sources(tmp_path).issue("quiz")
    file = tmp_path / "gateway" / "sources.json"
    assert isinstance(json.loads(file.read_text())["quiz"], str)
    admitted = Sources(tmp_path).admitted(token)
    assert admitted is not None
    assert admitted[0] == "quiz"
    assert admitted[1] == Sources(tmp_path).rights("quiz")
    assert [scope for scope in Scope if not admitted[1].allows(scope)] == [Scope.VIEW]


@pytest.mark.parametrize("wrong", [{"per_minute": 0}, {"per_minute": -1}])
def test_a_token_without_use_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Sources(tmp_path).issue("quiz", **wrong)
    with pytest.raises(InvalidValue):
        scope_of("everything")


@given(st.integers(1, 1000), st.lists(st.floats(0, 20, allow_subnormal=False), max_size=300))
def test_in_no_minute_are_there_twice_as_many(per_minute: int, pauses: list[float]) -> None:
    now = 0.0
    rates, came = Rates(lambda: now), []
    for pause in pauses:
        now += pause
        if (wait_s := rates.wait_s("a", per_minute)) == 0:
            came.append(now)
        else:
            assert 0 < wait_s <= MINUTE_S / per_minute + 1e-6
            now += wait_s + 1e-6
            assert rates.wait_s("a", per_minute) == 0, "as the answer said"
            came.append(now)
    for first in came:
        assert sum(first <= moment < first + MINUTE_S for moment in came) <= 2 * per_minute
    assert len(came) == len(pauses)


def test_names_that_were_quiet_are_forgotten() -> None:
    now = 0.0
    rates = Rates(lambda: now)
    for index in range(MANY):
        rates.wait_s(str(index), 60)
    now += MINUTE_S
    rates.wait_s("new", 60)
    assert len(rates._used_until) == 1


def test_anybody_may_come_any_number_of_times() -> None:
    rates = Rates(lambda: 0.0)
    assert all(rates.wait_s("a", None) == 0 for _ in range(10))
    assert not rates._used_until
