"""Sessions of one gateway: what its rules are, who is given which session, seals, and turns that are under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.errors import ConfigError
from schemas.rollouts import FailureKind, RolloutFailed, RolloutRequested
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from serve_apps.rollouts.agents import sessions as sessions_module
from serve_apps.rollouts.agents.live_session import TurnRefused
from serve_apps.rollouts.agents.sealing import Verdict
from serve_apps.rollouts.agents.sessions import AGAIN_S, RESUME_S, _none_waits, _same
from serve_apps.rollouts.agents.setup import agent_rules
from slime_events.algorithms.credit import CreditRule
from slime_events.core.config.agents import AgentSettings
from slime_events.core.config.engine import EngineSettings
from slime_events.core.config.reward import RewardSettings
from slime_events.core.config.rollout import RolloutSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.core.sessions.board import SessionBoard
from slime_events.core.sessions.session import Limits
from tests.agents.stage import ASKED, Stage, ask, seal, state
from tests.agents.test_live_sessions import SEALED
from tests.scripted_engine import Script


def settings(**more: Any) -> TrainSettings:
    agents = AgentSettings(agent_turn_seconds=1, agent_session_seconds=2, agent_idle_seconds=3, **more.pop("own", {}))
    rollout = RolloutSettings(agents=True, rollout_max_context_len=99, rollout_seed=7, max_attempts=4)
    return TrainSettings(**({"agents": agents, "rollout": rollout} | more))


def test_the_rules_of_a_run() -> None:
    rules = agent_rules(settings(own={"agent_tokens_in_flight": 5, "agent_turns_per_minute": 6}))
    assert (rules.limits, rules.context, rules.seed, rules.attempts) == (Limits(1, 2, 3), 99, 7, 4)
    assert (rules.tokens_in_flight, rules.turns_per_minute, rules.credit) == (5, 6, CreditRule())
    assert (rules.grades, rules.fails_idle, rules.engines) == (False, False, EngineSettings().replicas)
    for graded in (RewardSettings(rm_type="math"), RewardSettings(custom_rm_path="mine.py:reward")):
        assert agent_rules(settings(reward=graded)).grades
    assert agent_rules(settings(own={"agent_idle": "fail"})).fails_idle
    with pytest.raises(ConfigError):
        agent_rules(settings(rollout=RolloutSettings()))


@pytest.mark.parametrize(
    ("board", "status", "again_s"),
    [
        ({"interrupted": True, "over": True}, 503, RESUME_S),
        ({"over": True}, 409, None),
        ({}, 429, AGAIN_S),
        ({"ready_at": 1}, 429, AGAIN_S),
    ],
)
def test_why_no_session_is_given(board: dict[str, Any], status: int, again_s: float | None) -> None:
    class Board:
        interrupted, over, ready_at, open = False, False, None, ()

    fake_board: Any = Board()
    for name, value in board.items():
        setattr(fake_board, name, value)
    assert all(hasattr(SessionBoard(), name) for name in ("interrupted", "over", "ready_at", "open"))
    for group in (None, "g"):
        refused = _none_waits(fake_board, group)
        assert (refused.status, refused.again_s) == (status, again_s)
        assert ("group g" in str(refused)) == (group == "g")


@pytest.mark.parametrize(
    "other", [{"reward": 0.5}, {"rewards": {1: 1.0}}, {"exit_code": 0}, {"metadata": {"a": 1}}, {"reason": "over"}]
)
def test_another_verdict_is_no_seal_of_before(other: dict[str, Any]) -> None:
    assert _same(SEALED, Verdict(SealReason.IDLE)) is SEALED
    verdict = Verdict(**({"reason": SealReason.IDLE} | other))
    if "reason" in other:
        assert _same(SEALED, verdict) is SEALED
        return
    with pytest.raises(TurnRefused) as error:
        _same(SEALED, verdict)
    assert error.value.status == 409


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    async with stage.simulation:
        stage.simulation.start_engine(Script(chunk=4))
        yield stage


async def test_who_opened_a_session_and_by_which_key(stage: Stage) -> None:
    async with stage.gateway() as client:
        first, second = await stage.open(client), await stage.open(client)
        none = await stage.open(client, wait_s=0)
        assert (first["status"], second["status"], none["status"]) == (201, 201, 429)
        opened, other = stage.simulation.events(SessionOpened)
        assert (opened.sender, other.sender) == ("team", "team")
        assert opened.key != other.key
        assert (opened.sample, opened.attempt, opened.group) == (first["sample"], 0, first["group"])
        assert opened.gateway == other.gateway != ""
        body = await state(client, first)
        assert (body["turns"], body.get("sealed")) == ([], None)
        headers = {"authorization": f"Bearer {first['control_key']}"}
        assert (await client.get("/v1/sessions/nobody-s0.0", headers=headers)).status_code in (401, 404)


async def test_a_session_of_a_group_that_was_asked_for(stage: Stage) -> None:
    async with stage.gateway() as client:
        first = await stage.open(client)
        assert (await stage.open(client, group="another", wait_s=0))["status"] == 429
        assert (await stage.open(client, group=first["group"]))["group"] == first["group"]


async def test_sessions_that_are_not_kept_are_read_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "KEPT", 1)
    async with stage.gateway() as client:
        both = [await stage.open(client) for _ in range(2)]
        answers = [await ask(client, session, ASKED) for session in both]
        for session, answer in zip(both, answers, strict=True):
            await ask(client, session, [*ASKED, answer, {"role": "user", "content": "and?"}])
        for session in both:
            assert (await seal(client, session, reward=1.0)).status_code == 200
    assert [event.turns for event in stage.simulation.events(SessionSealed)] == [2, 2]
    assert [(turn_.index, turn_.extends) for turn_ in stage.check_turns()] == [(0, None), (0, None), (1, 0), (1, 0)]


async def test_a_seal_is_of_one_verdict(stage: Stage) -> None:
    async with stage.gateway() as client, stage.gateway() as other:
        session = await stage.open(client)
        await ask(client, session, ASKED)
        for gateway in (client, other, client):
            assert (await seal(gateway, session, reward=1.0)).status_code == 200
            assert (await seal(gateway, session, reward=0.0)).status_code == 409
        body = {"model": "m", "messages": ASKED}
        assert (await client.post(f"{session['base_url']}/chat/completions", json=body)).status_code == 409
    assert len(stage.simulation.events(SessionSealed)) == 1


async def test_a_session_that_is_sealed_ends_its_turns(tmp_path: Path) -> None:
    """At the engines too, whose room others wait for."""
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=1, seconds_per_chunk=0.2))
        session = await stage.open(client)
        body = {"model": "m", "messages": ASKED}
        late = asyncio.create_task(client.post(f"{session['base_url']}/chat/completions", json=body))
        await stage.simulation.until(RolloutRequested, purpose="call")
        assert [turn_["index"] for turn_ in (await state(client, session))["open"]] == [0]
        assert (await seal(client, session, exit_code=1)).status_code == 200
        assert (await late).status_code == 409
        failed = {event.kind: event.sample for event in await stage.simulation.until(RolloutFailed, 2)}
        assert failed[FailureKind.AGENT] == session["sample"]
        assert failed[FailureKind.ABORTED] != session["sample"]
        (sealed,) = stage.simulation.events(SessionSealed)
        assert (sealed.orphans, sealed.exit_code, sealed.reason) == ((0,), 1, SealReason.EXIT)


async def test_tokens_in_flight_are_those_of_turns_that_go_on(stage: Stage) -> None:
    """One turn is always let through; what has ended counts no more."""
    async with stage.gateway(tokens_in_flight=1) as client:
        session = await stage.open(client)
        url, body = f"{session['base_url']}/chat/completions", {"model": "m", "messages": ASKED}
        for _ in range(2):
            assert (await client.post(url, json=body)).status_code == 200
        both = await asyncio.gather(*(client.post(url, json=body) for _ in range(2)))
        assert sorted(answer.status_code for answer in both) == [200, 429]


async def asked_twice(client: httpx.AsyncClient, session: dict[str, Any]) -> list[httpx.Response]:
    url, body = f"{session['base_url']}/chat/completions", {"model": "m", "messages": ASKED}
    mark = {"idempotency-key": "one"}
    first = asyncio.create_task(client.post(url, json=body, headers=mark))
    await asyncio.sleep(0)
    return list(await asyncio.gather(first, client.post(url, json=body, headers=mark)))


async def test_a_retry_joins_the_turn_that_is_under_way(stage: Stage) -> None:
    async with stage.gateway() as client:
        first, second = await asked_twice(client, await stage.open(client))
        assert first.json() == second.json()
    assert len(stage.check_turns()) == 1
    assert len([event for event in stage.simulation.events(RolloutRequested) if event.purpose == "call"]) == 1


async def test_idle_sessions_fail_where_the_run_says_so(stage: Stage) -> None:
    limits = Limits(turn_s=5.0, session_s=60.0, idle_s=0.3)
    async with stage.gateway(limits=limits, fails_idle=True) as client:
        session = await stage.open(client)
        await ask(client, session, ASKED)
        (sealed,) = await stage.simulation.until(SessionSealed)
        assert sealed.reason is SealReason.IDLE
        (failed,) = await stage.simulation.until(RolloutFailed, sample=session["sample"])
        assert failed.kind is FailureKind.AGENT
