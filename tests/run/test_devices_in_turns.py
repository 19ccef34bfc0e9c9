"""A real run whose ranks and engine use their devices in turns has the weights of a run without turns."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from schemas.batches import BatchSealed
from schemas.devices import DeviceTaken, Side
from schemas.steps import StepCommitted
from schemas.workers import WorkerLost
from slime_events.app.cli.main import main
from tests.run.tiny import Watching, events_of, of, run_with
from tests.run.whole import whole_settings

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(900)]

STEPS = 5


def test_turns_change_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Engine and trainer are killed once each, while they hold the devices or wait for them."""
    asyncio.run(run_with(whole_settings(tmp_path / "a", "apart", STEPS, chunk_tokens=8)))
    settings = whole_settings(tmp_path / "b", "turns", STEPS, chunk_tokens=8)
    shared = {"colocate": True, "offload_train": True, "offload_rollout": True}
    settings = msgspec.structs.replace(settings, engine=msgspec.structs.replace(settings.engine, **shared))
    assert settings.engine.takes_turns

    async def kill(view: Watching) -> None:
        await view.until(lambda progress: progress.state.version >= 1)
        os.kill(view.pid_of("engine"), signal.SIGKILL)
        await view.until(lambda progress: progress.state.version >= 3)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)

    asyncio.run(run_with(settings, kill))
    first, events = events_of(tmp_path / "a" / "runs" / "apart"), events_of(run := tmp_path / "b" / "runs" / "turns")
    assert {"engine", "trainer"} <= {event.role for event in of(events, WorkerLost)}
    sides = [event.side for event in of(events, DeviceTaken)]
    assert sides.count(Side.TRAINER) >= STEPS
    assert sides.count(Side.ENGINES) >= STEPS
    assert not of(first, DeviceTaken)
    assert [event.digest for event in of(first, BatchSealed)] == [event.digest for event in of(events, BatchSealed)]
    digests = [[event.weights_digest for event in of(log, StepCommitted)] for log in (first, events)]
    assert digests[0] == digests[1]
    assert main(["audit", str(run)]) == 0, capsys.readouterr().out
