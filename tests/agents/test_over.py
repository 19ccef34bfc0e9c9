"""A run that has ended while rollouts wait for agents: no session of them is opened, and a late turn is no decision."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from schemas.arrays import pack_tokens
from schemas.event import Event, Purpose
from schemas.rollouts import RolloutRequested, Sampling
from schemas.runs import FinishReason
from slime_events.analysis.audit.history import Lifetime
from slime_events.core.run.participant import Participant
from slime_events.core.sessions.board import SessionBoard
from tests import made
from tests.agents.stage import Stage


@pytest.mark.parametrize(("reason", "status"), [(FinishReason.ALL_STEPS, 409), (FinishReason.INTERRUPTED, 503)])
async def test_no_session_is_opened_once_the_run_is_over(tmp_path: Path, reason: FinishReason, status: int) -> None:
    """An interrupted run can be resumed: its harness asks again."""
    stage = Stage(tmp_path)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine()
        assert (await stage.open(client))["status"] == 201
        over = made.finished(reason, steps=0)
        await Participant(stage.simulation.log, "conductor").append_fenced(over)
        late = await stage.open(client, wait_s=5)
    assert late["status"] == status, "another rollout waits, and nobody trains on it now"


def test_a_resumed_run_is_over_no_more() -> None:
    board = SessionBoard()
    over = made.finished(FinishReason.INTERRUPTED, steps=0)
    for recorded in made.recorded(over, made.resumed()):
        board.apply(recorded)
        assert (board.over, board.interrupted) == (recorded.position == 1, recorded.position == 1)


def test_a_turn_that_a_gateway_begins_at_the_end_is_no_decision_of_the_run() -> None:
    errors: list[str] = []

    class Looked(Lifetime):
        def find(self, wrong: str, means: str) -> None:
            errors.append(wrong)

    looked = Looked(SimpleNamespace(position=9, ended=8))  # type: ignore[arg-type]

    def requested(purpose: Purpose) -> Event:
        fields = {"sample": "turn-0-x-s0-s0", "group": "turn-0-x-s0", "index": 0, "seed": 1, "purpose": purpose}
        prompt, sampling = pack_tokens(np.array([49], np.int32)), Sampling(max_new_tokens=1)
        return RolloutRequested(prompt=prompt, sampling=sampling, **fields)  # type: ignore[arg-type]

    looked.apply(requested(Purpose.CALL))
    assert errors == []
    looked.apply(requested(Purpose.TRAIN))
    assert len(errors) == 1
