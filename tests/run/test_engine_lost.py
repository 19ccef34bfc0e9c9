"""A real run whose engine is killed in the middle of a step ends with the weights of a run without that."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.weights import WeightsPublished
from schemas.workers import WorkerJoined
from tests.run.tiny import MARK, Watching, events_of, left_behind, of, run_with, tiny

pytestmark = pytest.mark.real

STEPS = 2


def test_a_killed_engine_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    settings = [tiny(tmp_path, run, rollout={"num_rollout": STEPS}, engine={"chunk_tokens": 4}) for run in ("a", "b")]

    async def kill(view: Watching) -> None:
        """Once step 1 is under way and its first rollouts are done."""
        progress = await view.until(lambda p: p.state.version == 1 and p.state.counts.samples_completed > 34)
        (engine,) = [worker for worker in progress.workers if worker.role == "engine"]
        os.kill(engine.pid, signal.SIGKILL)
        print("killed", time.time())

    view = Watching()
    asyncio.run(run_with(settings[0]))
    asyncio.run(run_with(settings[1], kill, view=view))
    assert left_behind(mark) == []
    events = [events_of(tmp_path / "runs" / run) for run in ("a", "b")]
    versions = [{one.version: one.digest for one in of(log, WeightsPublished)} for log in events]
    assert versions[0] == versions[1]
    engines = [one for one in of(events[1], WorkerJoined) if one.role == "engine"]
    assert len(engines) == 2
    assert any("an engine was lost" in note and engines[1].worker in note for note in view.notes)
    rollouts = of(events[1], RolloutCompleted)
    assert {one.engine for one in rollouts} == {engine.worker for engine in engines}
    resumed = [one for one in rollouts if one.engine == engines[1].worker and one.start > 0]
    print(len(resumed), view.notes, [ (w.worker, w.seconds) for w in engines])
    for r in events[1]:
        e = r.envelope
        if e.type in ("worker.joined", "worker.lost", "weights.activated", "step.committed","batch.sealed"): print(r.position, e.at/1e9, e.type, e.producer)
