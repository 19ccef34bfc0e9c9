"""Hostile texts in prompts, answers, labels and metadata come back as they are, in answers that are data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from schemas.event import Event
from schemas.groups import GroupRejected
from schemas.prompts import PromptSubmitted
from serve_apps.http.console.wire import MOST
from slime_events.core.run.run_reader import OpenedRun
from tests.console.hostile import HOSTILE, NAME, TEXTS, events, group
from tests.console.served import Memory, client_of
from tests.lineage.opened import opened

RUN = f"/api/runs/{HOSTILE}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def run() -> OpenedRun:
    """A run with a group for each text."""
    return await opened(events(), HOSTILE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(run: OpenedRun) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(Memory({HOSTILE: run})) as made_client:
        yield made_client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def positions(run: OpenedRun) -> dict[tuple[type[Event], str], int]:
    """Position of each event, by its type and what it is about."""
    return {(type(one.envelope.event), one.envelope.event.entity()): one.position async for one in run.log.read(1)}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", range(len(TEXTS)), ids=lambda number: ascii(TEXTS[number][:16]))
async def test_a_hostile_text_is_a_text(
    client: httpx.AsyncClient, positions: dict[tuple[type[Event], str], int], number: int
) -> None:
    text, name = TEXTS[number], TEXTS[number][:NAME]
    rejected = positions[GroupRejected, f"r{number}"]
    answered = await client.get(f"{RUN}/groups/{group(number)}")
    rollout = await client.get(f"{RUN}/rollouts/{group(number)}-s0")
    page = await client.get(f"{RUN}/samples", params={"filter": f"group_id:eq:{group(number)}"})
    found = await client.get(f"{RUN}/samples", params={"text": name})
    moment = await client.get(f"{RUN}/moment", params={"at": rejected, "other": rejected - 1})
    request = await client.get(f"{RUN}/request/{positions[PromptSubmitted, group(number)]}/{group(number)}-s0")
    trial = await client.get(f"{RUN}/filters/check_reward_nonzero_std/{group(number)}")
    answers = (answered, rollout, page, found, moment, request, trial)
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
    decision = moment.json()["difference"]["decisions"][-1]
    assert (decision["about"], decision["figures"]) == (f"r{number}", {name: 0.5})
    assert text in decision["reason"]
    sent = request.json()
    if len(sent["text"]) == sent["length"]:
        assert json.loads(sent["text"])["event"]["label"] == text
    else:
        assert len(sent["text"]) == MOST < sent["length"]
    prompt = answered.json()["group"]["prompt"]
    assert (prompt["text"], prompt["label"], prompt["metadata"]) == (text, text, {name: text})
    assert rollout.json()["sample"]["text"] == text
    assert page.json()["columns"]["text"] == [text[:300]]
    assert f"{group(number)}-s0" in found.json()["columns"]["sample"]
