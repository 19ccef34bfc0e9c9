"""A harness that was lost finds its own open sessions again, and those of nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from schemas.runs import FinishReason
from serve_apps.http.gateway import open_sessions
from serve_apps.http.gateway.sources import Scope
from slime_events.core.run.participant import Participant
from tests import made
from tests.agents.stage import ASKED, Stage, ask, seal
from tests.scripted_engine import Script


async def listed(stage: Stage, client: httpx.AsyncClient, token: str, **query: str) -> dict[str, Any]:
    answer = await client.get(
        "/v1/runs/sim/sessions", params={"open": ""} | query, headers={"authorization": f"Bearer {token}"}
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_open_sessions_are_found_by_their_source_alone(tmp_path: Path) -> None:
    stage = Stage(tmp_path, groups=2)
    other = stage.sources.issue("other", [Scope.SESSIONS])
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=8))
        used, sealed = await stage.open(client), await stage.open(client)
        await ask(client, used, ASKED)
        await seal(client, sealed, exit_code=1)
        async with stage.gateway() as another:
            sessions = await listed(stage, another, stage.token)
        assert await listed(stage, client, other) == sessions | {"sessions": []}
    (listed_session,) = sessions["sessions"]
    same = ("session", "sample", "group", "attempt", "control_key")
    assert [listed_session[name] for name in same] == [used[name] for name in same]
    assert (listed_session["turns"], listed_session["under_way"]) == (1, 0)
    assert (sessions["next"], sessions["over"], sessions["interrupted"]) == ("", False, False)


async def test_its_key_opens_it_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=8))
        opened = await stage.open(client)
        (listed_session,) = (await listed(stage, client, stage.token))["sessions"]
        headers = {"authorization": f"Bearer {stage.token}", "idempotency-key": listed_session["key"]}
        again = (await client.post("/v1/runs/sim/sessions", headers=headers)).json()
    assert again == {name: value for name, value in opened.items() if name != "status"}


async def test_many_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_sessions, "PAGE", 2)
    stage = Stage(tmp_path, groups=2, samples=3)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=8))
        opened = {(await stage.open(client))["session"] for _ in range(5)}
        names, after, pages = list[str](), "", 0
        while pages == 0 or after:
            page = await listed(stage, client, stage.token, after=after)
            assert len(page["sessions"]) <= 2
            names += [entry["session"] for entry in page["sessions"]]
            after, pages = page["next"], pages + 1
    assert (set(names), len(names), pages) == (opened, 5, 3)


@pytest.mark.parametrize(("reason", "status"), [(FinishReason.ALL_STEPS, 409), (FinishReason.INTERRUPTED, 503)])
async def test_a_run_that_is_off_says_whether_it_has_ended(tmp_path: Path, reason: FinishReason, status: int) -> None:
    """So no harness waits for a run that nobody will ever resume."""
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=8))
        opened = await stage.open(client)
        over = made.finished(reason, steps=0)
        await Participant(stage.simulation.log, "conductor").append_fenced(over)
        stage.is_on = False
        listing = await listed(stage, client, stage.token)
        refused = [await seal(client, opened, reward=1.0)]
        refused.append(await client.post("/v1/runs/sim/sessions", headers={"authorization": f"Bearer {stage.token}"}))
    assert [entry["session"] for entry in listing["sessions"]] == [opened["session"]]
    assert (listing["over"], listing["interrupted"]) == (True, reason is FinishReason.INTERRUPTED)
    assert [response.status_code for response in refused] == [status] * 2
    assert all(("retry-after" in response.headers) == (status == 503) for response in refused)


async def test_who_may_not_and_what_is_not_listed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    producer = stage.sources.issue("producer", [Scope.PROMPTS])
    async with stage.simulation, stage.gateway() as client:
        answers_ = {
            status: (await client.get(where, headers={"authorization": f"Bearer {token}"})).status_code
            for status, where, token in (
                (400, "/v1/runs/sim/sessions", stage.token),
                (401, "/v1/runs/sim/sessions?open", "none"),
                (403, "/v1/runs/sim/sessions?open", producer),
                (404, "/v1/runs/other/sessions?open", stage.token),
            )
        }
        document = (await client.get("/openapi.json")).json()
    assert list(answers_) == list(answers_.values())
    names = [parameter["name"] for parameter in document["paths"]["/v1/runs/{run_name}/sessions"]["get"]["parameters"]]
    assert names == ["run_name", "open", "after"]
