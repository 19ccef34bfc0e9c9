"""No time of a session, of a turn or of a program passes before an engine of the run can answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.event import Event
from schemas.runs import FinishReason
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from schemas.weights import WeightsActivated
from schemas.workers import WorkerLost
from slime_events.core.run.participant import Participant
from slime_events.core.sessions.board import SessionBoard
from slime_events.core.sessions.session import Limits
from tests import made
from tests.agents.stage import ASKED, Stage, ask, state
from tests.scripted_engine import Script

AWAY_S = 3.5
"""Longer than a gateway takes between two looks."""


async def test_no_session_is_opened_before_an_engine_is_ready(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        early = await stage.open(client, wait_s=0.5)
        assert (early["status"], stage.simulation.events(SessionOpened)) == (429, [])
        assert "no engine is ready" in early["error"]
        opening = asyncio.create_task(stage.open(client))
        stage.simulation.start_engine(Script(chunk=8, seconds_to_start=0.5))
        assert (await opening)["status"] == 201
    (activated, *_), (opened,) = stage.simulation.events(WeightsActivated), stage.simulation.events(SessionOpened)
    at = {type(record.envelope.event): record.position for record in reversed(stage.simulation.log.records)}
    assert at[type(activated)] < at[type(opened)]


async def test_a_session_that_waits_for_an_engine_is_not_idle(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    limits = Limits(turn_s=0.5, session_s=2.5, idle_s=1.0)
    async with stage.simulation, stage.gateway(limits=limits) as client:
        stage.simulation.start_engine(Script(chunk=8), name="first")
        unused, used = await stage.open(client), await stage.open(client)
        stage.simulation.engines.pop("first").cancel()
        await Participant(stage.simulation.log, "engine").append(
            [WorkerLost(worker="first", role="engine", reason="killed")]
        )
        asking = asyncio.create_task(ask(client, used, ASKED))
        await asyncio.sleep(AWAY_S)
        assert not asking.done(), "its turn's time has not begun"
        assert stage.simulation.events(SessionSealed) == []
        refused = await stage.open(client, wait_s=0)
        assert refused["status"] == 429
        stage.simulation.start_engine(Script(chunk=8), name="second", lease_s=0.2)
        assert (await asking)["role"] == "assistant"
        (sealed,) = await stage.simulation.until(SessionSealed, sample=unused["sample"])
        assert sealed.reason is SealReason.IDLE, "its time begins with the engine, and it has one"
        assert (await state(client, used))["turns"]


@pytest.mark.parametrize("back", [False, True])
def test_the_board_knows_since_when_there_is_an_engine(back: bool) -> None:
    board = SessionBoard()
    first, second = (made.activated(engine=name, digest="d") for name in ("engine-1", "engine-2"))
    events: list[tuple[Event, int | None]] = [
        (first, 1),
        (second, 1),
        (WorkerLost(worker="engine-1", role="engine", reason="killed"), 1),
        (WorkerLost(worker="conductor-1", role="conductor", reason="killed"), 1),
        (WorkerLost(worker="engine-2", role="engine", reason="killed"), None),
        (second, 6),
        (made.finished(FinishReason.INTERRUPTED, steps=0), 6),
        (made.resumed(), None),
        *([(first, 9)] if back else []),
    ]
    for position, (event, ready_at) in enumerate(events, 1):
        board.apply(made.recorded(event, at=position, first=position)[0])
        assert board.ready_at == ready_at, event
    assert (board.ready_at is not None) is back
