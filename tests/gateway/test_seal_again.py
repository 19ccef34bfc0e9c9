"""A seal is answered, and a retried one says the same, also where the run has asked for the rollout again meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from schemas.rollouts import RolloutFailed, RolloutRequested
from schemas.sessions import SessionSealed
from serve_apps.rollouts.agents.run_log import RunLog
from tests.agents.stage import ASKED, Stage, ask, seal, state
from tests.scripted_engine import Script

ENDS: list[dict[str, Any]] = [{"exit_code": 1}, {"exit_code": 137, "metadata": {"why": "killed"}}, {"reward": 1.0}]


@pytest.mark.parametrize("wish", ENDS, ids=str)
@pytest.mark.parametrize("late_s", [0.0, 0.3], ids=["at-once", "after-the-next-request"])
async def test_a_seal_and_its_retries_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wish: dict[str, Any], late_s: float
) -> None:
    stage = Stage(tmp_path)
    append = RunLog.append

    async def slow(self: RunLog, events: Any, fence: Any) -> Any:
        recorded = await append(self, events, fence)
        await asyncio.sleep(late_s)  # the conductor asks again before the gateway continues
        return recorded

    async with stage.simulation, stage.gateway() as client, stage.gateway() as other:
        stage.simulation.start_engine(Script(chunk=8))
        session = await stage.open(client)
        await ask(client, session, ASKED)
        monkeypatch.setattr(RunLog, "append", slow)
        first = await seal(client, session, **wish)
        assert first.status_code == 200, first.text
        assert first.json()["sealed"]
        assert first.json()["result"]
        monkeypatch.setattr(RunLog, "append", append)
        if "exit_code" in wish:
            await _asked_again(stage, session["sample"])
        for again in (await seal(client, session, **wish), await seal(other, session, **wish)):
            assert (again.status_code, again.json()) == (200, first.json())
        assert await state(other, session) == first.json()
        assert (await seal(other, session, reward=0.25)).status_code == 409
        sealed = stage.simulation.events(SessionSealed)
        assert len([event for event in sealed if event.sample == session["sample"]]) == 1


async def _asked_again(stage: Stage, sample: str) -> None:
    assert [event for event in stage.simulation.events(RolloutFailed) if event.sample == sample]
    async with asyncio.timeout(5.0):
        while True:
            requests = [event for event in stage.simulation.events(RolloutRequested) if event.sample == sample]
            if any(request.attempt == 1 for request in requests):
                return
            await asyncio.sleep(0.02)


async def test_the_next_attempt_is_a_session_of_its_own(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=8))
        first = await stage.open(client)
        await ask(client, first, ASKED)
        assert (await seal(client, first, exit_code=1)).status_code == 200
        await _asked_again(stage, first["sample"])
        second = await stage.open(client, group=first["group"])
        if second["sample"] == first["sample"]:
            assert second["attempt"] == 1
        await ask(client, second, ASKED)
        assert (await seal(client, second, reward=1.0)).json()["sealed"] == "reward"
        assert (await state(client, first))["sealed"] == "exit"
        refused = await client.post(f"{first['base_url']}/chat/completions", json={"model": "m", "messages": ASKED})
        assert refused.status_code in (404, 409)
