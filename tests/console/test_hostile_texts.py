"""Hostile texts in prompts, answers, labels and metadata come back as they are, in answers that are data."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from schemas.event import Event
from schemas.groups import RejectionCause
from serve_apps.http.console.wire import MOST
from tests import made
from tests.console.served import Memory, client_of
from tests.lineage.opened import opened

TEXTS = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "javascript:alert(1)",
    "\u202eevil\u202c \u2066a\u2069",
    "\x1b[2J\x1b]0;title\x07",
    "nul \x00 in it",
    "'; DROP TABLE samples; --",
    'quotes " and \\ and \n lines \r\n',
    "\ufffd \ufeff \u2028 \u2029",
    "👩‍👩‍👧‍👦 e\u0301 ﷽",
    "x" * 1_000_000,
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A run with a group for each text."""
    events: list[Event] = [made.started()]
    for number, text in enumerate(TEXTS):
        sample = f"g{number}-s0"
        events += [
            made.submitted(f"g{number}", text=text, label=text, metadata={text[:100]: text}),
            made.requested(sample),
            made.completed(sample, [1], [-0.5], text=text, length=1),
            made.assigned(sample, value=1.0, grader=text[:100]),
            made.rejected(
                f"g{number}",
                RejectionCause.FILTER,
                reason=text,
                samples=(sample,),
                rewards=(1.0,),
                filter=text[:100],
                figures={text[:100]: 1.0},
            ),
        ]
    async with client_of(Memory({"r": await opened(events, "r")})) as made_client:
        yield made_client


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("number", range(len(TEXTS)), ids=lambda number: ascii(TEXTS[number][:16]))
async def test_a_hostile_text_is_a_text(client: httpx.AsyncClient, number: int) -> None:
    text = TEXTS[number]
    group = await client.get(f"/api/runs/r/groups/g{number}")
    rollout = await client.get(f"/api/runs/r/rollouts/g{number}-s0")
    page = await client.get("/api/runs/r/samples", params={"filter": f"group_id:eq:g{number}"})
    found = await client.get("/api/runs/r/samples", params={"text": text[:100]})
    moment = await client.get("/api/runs/r/moment", params={"at": 6 + 5 * number, "other": 1})
    prompt_at = 2 + 5 * number
    request = await client.get(f"/api/runs/r/request/{prompt_at}/g{number}-s0")
    trial = await client.get(f"/api/runs/r/filters/check_reward_nonzero_std/g{number}")
    answers = (group, rollout, page, found, moment, request, trial)
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
    decision = moment.json()["difference"]["decisions"][-1]
    assert (decision["about"], decision["reason"]) == (f"g{number}", f"filter: {text[:100]}: {text}")
    assert decision["figures"] == {text[:100]: 1.0}
    sent = request.json()
    if len(sent["text"]) == sent["length"]:
        assert json.loads(sent["text"])["event"]["label"] == text
    else:
        assert len(sent["text"]) == MOST < sent["length"]
    prompt = group.json()["group"]["prompt"]
    assert (prompt["text"], prompt["label"], prompt["metadata"]) == (text, text, {text[:100]: text})
    assert rollout.json()["sample"]["text"] == text
    assert page.json()["columns"]["text"] == [text[:300]]
    assert f"g{number}-s0" in found.json()["columns"]["sample"]
