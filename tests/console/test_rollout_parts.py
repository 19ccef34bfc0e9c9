"""*Rollout*: the times of its tokens, the requests behind it, and what a token frame says of trainer and teacher."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np
import pytest

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.event import Event
from schemas.prompts import PromptOffered
from schemas.rollouts import Timings
from schemas.turns import AgentTurn, SharedBody, TurnRole
from serve_apps.http.console import wire
from tests import made
from tests.cli.small_run import ENGINE, GROUPS, SECOND, START
from tests.console.served import URL, Memory, client_of, get
from tests.lineage.opened import opened

pytestmark = pytest.mark.asyncio(loop_scope="package")
WHOLE, IN_CHUNKS = f"{GROUPS[0]}-s1", f"{GROUPS[3]}-s1"
BODY = b'{"messages": [], "model": "\xe2\x9c\x93 \xff"}'


async def _of(events: list[Event], path: str, **query: Any) -> dict[str, Any]:
    async with client_of(Memory({"r": await opened([made.started(), *events], "r")})) as client:
        return await get(client, f"/api/runs/r/{path}", **query)


async def test_a_chunk_has_the_time_of_its_event(client: httpx.AsyncClient) -> None:
    times = await get(client, f"{URL}/times/{IN_CHUNKS}")
    first, last = times["chunks"]
    assert [(chunk["start"], chunk["end"]) for chunk in times["chunks"]] == [(0, 2), (2, 3)]
    assert last["at"] - first["at"] == SECOND // 10 == first["at"] - times["requested_at"]  # an event each 0.1 s
    assert times["begun_at"] == last["at"] - SECOND // 2
    assert (times["turns"], times["sample"]) == (0, IN_CHUNKS)
    whole = await get(client, f"{URL}/times/{WHOLE}")
    assert [(chunk["start"], chunk["end"]) for chunk in whole["chunks"]] == [(0, 3)]
    assert START < whole["requested_at"] < whole["chunks"][0]["at"]


async def test_after_a_second_attempt_the_beginning_is_unknown() -> None:
    events: list[Event] = [
        made.submitted("g"),
        made.requested("g-s0"),
        made.progressed("g-s0", [10], log_probs=[-0.5], engine=ENGINE),
        made.suspended("g-s0", length=1),
        made.requested("g-s0", attempt=1),
        made.completed("g-s0", [11], [-0.5], start=1, length=2, attempt=1, timings=Timings(generating=0.5)),
    ]
    times = await _of(events, "times/g-s0")
    assert [(chunk["start"], chunk["end"]) for chunk in times["chunks"]] == [(0, 1), (1, 2)]
    assert times["begun_at"] is None


def _in_turns(response: list[int]) -> list[Event]:
    """A rollout of two turns, the first in two chunks, with two tokens put between; and of a turn on another path."""
    return [
        made.submitted("g"),
        made.requested("g-s0"),
        made.progressed("g-s0", [10], log_probs=[-0.5], engine=ENGINE, turn=0),
        made.turn("g-s0", tokens=pack_tokens([11]), start=1, length=2, observed=pack_tokens([1, 2]), seconds=3.0),
        made.turn("g-s0", 1, extends=0, tokens=pack_tokens([8]), length=1, observed=pack_tokens([7]), seconds=0.5),
        made.turn("g-s0", 2, role=TurnRole.TOOL, result=5),
        made.turn(
            "g-s0", 3, extends=0, tokens=pack_tokens([14]), length=1, observed=pack_tokens([12, 13]), seconds=2.0
        ),
        made.completed("g-s0", response, [-0.5] * len(response), length=len(response)),
    ]


async def test_the_times_of_turns_are_those_of_the_response() -> None:
    events = _in_turns([10, 11, 12, 13, 14])
    log = await opened([made.started(), *events], "r")
    at = {each.position: each.envelope.at async for each in log.log.read()}
    times = await _of(events, "times/g-s0")
    chunks = times["chunks"]
    assert (times["turns"], times["by_turn"]) == (4, True)
    assert [(chunk["start"], chunk["end"]) for chunk in chunks] == [(0, 1), (1, 2), (2, 4), (4, 5)]
    turn, last = at[5], at[8]
    assert [chunk["since"] - turn for chunk in chunks[:2]] == [-3 * SECOND, at[4] - turn]
    assert [chunk["at"] - turn for chunk in chunks[:2]] == [at[4] - turn, 0]
    assert chunks[2]["at"] == chunks[2]["since"] == chunks[3]["since"] == last - 2 * SECOND
    assert chunks[3]["at"] == last


async def test_turns_that_do_not_give_the_response_have_no_times_in_it() -> None:
    times = await _of(_in_turns([10, 11, 12, 99, 14]), "times/g-s0")
    assert (times["turns"], times["by_turn"]) == (4, False)
    assert [(chunk["start"], chunk["end"], chunk["since"]) for chunk in times["chunks"]] == [(0, 5, None)]


async def test_the_requests_of_a_rollout_are_the_events(client: httpx.AsyncClient) -> None:
    page = await get(client, f"{URL}/requests/{WHOLE}")
    assert [request["type"] for request in page["requests"]] == ["prompt.submitted", "rollout.requested"]
    text = json.loads((await get(client, f"{URL}/request/{page['requests'][1]['position']}/{WHOLE}"))["text"])
    assert text["position"] == page["requests"][1]["position"]
    assert (text["event"]["sample"], text["event"]["prompt"], text["event"]["seed"]) == (WHOLE, [1, 2, 3], 5)


@pytest.mark.parametrize("sample", [WHOLE, "none-s0", "x", "-s0"])
async def test_an_event_that_is_no_request_of_the_rollout_is_not_shown(client: httpx.AsyncClient, sample: str) -> None:
    for position in (0, 1, 10**30):
        answer = await client.get(f"{URL}/request/{position}/{sample}")
        assert (answer.status_code, isinstance(answer.json()["error"], str)) == (404, True)


def _agent(index: int, request: bytes, shares: SharedBody | None = None) -> Event:
    agent = AgentTurn(
        key="k", dialect="chat", call="c", client="c/1", request=pack(np.frombuffer(request, np.int8), "int8"),
        shares=shares,
    )  # fmt: skip
    return made.turn("g-s0", index=index, agent=agent)


async def test_the_body_of_an_agents_request_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    second = BODY[:13] + b"1, 2" + BODY[13:]
    events: list[Event] = [
        PromptOffered(group="g", key="k", prompt="2+2=", sender="s"),
        made.submitted("g"),
        made.requested("g-s0"),
        _agent(0, BODY),
        _agent(1, b"1, 2", SharedBody(0, 13, len(BODY) - 13)),
    ]
    requests = (await _of(events, "requests/g-s0"))["requests"]
    assert [(request["type"], request["turn"], request["dialect"]) for request in requests] == [
        ("prompt.offered", None, ""),
        ("prompt.submitted", None, ""),
        ("rollout.requested", None, ""),
        ("turn.recorded", 0, "chat"),
        ("turn.recorded", 1, "chat"),
    ]
    for request, body in zip(requests[3:], (BODY, second), strict=True):
        text = await _of(events, f"request/{request['position']}/g-s0")
        assert text["text"] == body.decode("utf-8", "backslashreplace")
        assert text["length"] == len(text["text"])
    monkeypatch.setattr(wire, "MOST", 10)
    cut = await _of(events, f"request/{requests[3]['position']}/g-s0")
    assert (cut["text"], cut["length"]) == ('{"messages', len(BODY.decode("utf-8", "backslashreplace")))


def _frame(data: bytes) -> tuple[dict[str, Any], dict[str, list[float]]]:
    length = int.from_bytes(data[:4], "little")
    head, at, arrays = json.loads(data[4 : 4 + length]), 4 + length, {}
    for name, kind in head["arrays"].items():
        arrays[name] = np.frombuffer(data, kind, head["n"], at).tolist()
        at += -(-np.dtype(kind).itemsize * head["n"] // 8) * 8
    assert at == len(data)
    return head, arrays


async def test_a_frame_has_the_teachers_log_probs_and_the_gap_of_the_step() -> None:
    gap = {"train_rollout_logprob_abs_diff": 0.125}
    teacher = pack_log_probs([-1.0, -2.0])
    events: list[Event] = [
        made.submitted("g"),
        made.requested("g-s0"),
        made.completed("g-s0", [1, 2], [-0.5, -0.5], length=2),
        made.assigned("g-s0", value=1.0, teacher_log_probs=teacher),
        made.accepted("g", samples=("g-s0",), rewards=(1.0,)),
        made.sealed(0, groups=("g",), samples=("g-s0",), rewards=(1.0,), raw_rewards=(1.0,)),
        made.committed(0, metrics=gap),
    ]
    async with client_of(Memory({"r": await opened([made.started(), *events], "r")})) as client:
        head, arrays = _frame((await client.get("/api/runs/r/tokens/g-s0")).content)
    assert (head["step_gap"], arrays["teacher"]) == (0.125, [-1.0, -2.0])


async def test_a_frame_invents_nothing(client: httpx.AsyncClient) -> None:
    head, arrays = _frame((await client.get(f"{URL}/tokens/{WHOLE}")).content)
    assert (head["step_gap"], "teacher" in arrays) == (None, False)  # the metrics of its step have no gap
