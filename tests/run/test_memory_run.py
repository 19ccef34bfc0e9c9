"""A real run whose engine takes weights from the trainer's memory has the weights of a run by files."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from schemas.batches import BatchSealed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsPublished
from schemas.workers import WorkerLost
from slime_events.app.cli.main import main
from tests.run.test_delta_run import with_deltas
from tests.run.tiny import Watching, events_of, of, run_with
from tests.run.whole import whole_settings

pytestmark = [pytest.mark.real, pytest.mark.soak]

STEPS = 5


def test_memory_gives_the_weights_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The versions are stored as deltas, of which an engine makes copies only when it reads files."""
    by_files = whole_settings(tmp_path / "a", "files", STEPS, chunk_tokens=8)
    asyncio.run(run_with(by_files))
    here = tmp_path / "here"
    settings = with_deltas(whole_settings(tmp_path / "b", "memory", STEPS, chunk_tokens=8), here)
    trainer = msgspec.structs.replace(settings.trainer, update_weight_transport="shared-memory")
    settings = msgspec.structs.replace(settings, trainer=trainer)
    before = set(os.listdir("/dev/shm"))

    async def kill(view: Watching) -> None:
        """Kill the engine while version 1 is new, and the trainer with version 3 in its memory."""
        await view.until(lambda progress: progress.state.version >= 1)
        os.kill(view.pid_of("engine"), signal.SIGKILL)
        await view.until(lambda progress: progress.state.version >= 3)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)

    asyncio.run(run_with(settings, kill))
    first, events = events_of(tmp_path / "a" / "runs" / "files"), events_of(run := tmp_path / "b" / "runs" / "memory")
    assert {"engine", "trainer"} <= {event.role for event in of(events, WorkerLost)}
    for kind in (BatchSealed, StepCommitted):
        digests = [[event.digest if kind is BatchSealed else event.weights_digest for event in of(log, kind)]
                   for log in (first, events)]  # fmt: skip
        assert digests[0] == digests[1], kind
    published = {event.version: event for event in of(events, WeightsPublished)}
    assert {event.carrier for event in published.values()} == {WeightsCarrier.SHARED_MEMORY}
    activated = of(events, WeightsActivated)
    assert all(event.digest == published[event.version].digest for event in activated)
    memory = [event.version for event in activated if event.carrier is WeightsCarrier.SHARED_MEMORY]
    assert {0, 1, 2} & set(memory)
    assert main(["audit", str(run)]) == 0, capsys.readouterr().out
    new = {name for name in os.listdir("/dev/shm") if name not in before}
    assert not [name for name in new if "weights" in name]
