"""The same run with its engine killed in the middle of a step: another takes over, and nothing else is different."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path

import pytest

from schemas.rollouts import RolloutCompleted
from schemas.weights import WeightsPublished
from schemas.workers import WorkerJoined
from slime_events.state.group import SamplePhase
from slime_events.state.run import RunState
from tests.run.tiny import MARK, Watching, events_of, left_behind, of, run_with
from tests.run.whole import Finished, whole_settings

pytestmark = pytest.mark.real

STEPS = 2


def test_a_killed_engine_changes_no_weight(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Same settings, same seed, as many steps as go without the producer: every version bit for bit the same."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)

    async def kill(view: Watching) -> None:
        """Once step 1 has some of its rollouts, and others are under way."""
        progress = await view.until(lambda p: p.state.version == 1 and _running(p.state) > 8)
        (engine,) = [worker for worker in progress.workers if worker.role == "engine"]
        os.kill(engine.pid, signal.SIGKILL)

    view = Watching()
    asyncio.run(run_with(whole_settings(tmp_path, "whole", STEPS, chunk_tokens=4), kill, view=view))
    assert left_behind(mark) == []
    events = events_of(tmp_path / "runs" / "whole")

    expected = {one.version: one.digest for one in of(finished.events, WeightsPublished) if one.version <= STEPS}
    assert {one.version: one.digest for one in of(events, WeightsPublished)} == expected

    _, successor = [one.worker for one in of(events, WorkerJoined) if one.role == "engine"]
    taken_over = [one for one in of(events, RolloutCompleted) if one.engine == successor]
    assert any(one.start > 0 for one in taken_over), "some go on from their last chunk"
    assert [note for note in view.notes if successor in note and "an engine was lost" in note]
    assert "raylet" not in capfd.readouterr().out


def _running(state: RunState) -> int:
    """Rollouts that have said something and are not done."""
    return sum(s.phase is SamplePhase.RUNNING for g in state.groups.values() for s in g.samples.values())
