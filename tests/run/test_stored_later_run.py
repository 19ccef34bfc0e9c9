"""A real run that stores versions after their steps has the weights of a run that stores them before."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from schemas.batches import BatchSealed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsStored
from schemas.workers import WorkerLost
from slime_events.app.cli.main import main
from storage.weights.stored_version import verify
from tests.run.tiny import Watching, events_of, of, run_with
from tests.run.whole import whole_settings

pytestmark = [pytest.mark.real, pytest.mark.soak]

STEPS = 5
MEMORY = Path("/dev/shm")


def held() -> set[Path]:
    return set(MEMORY.glob("slime-events-weights-*"))


def test_the_weights_are_those_of_a_run_that_stores_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(run_with(whole_settings(tmp_path / "a", "first", STEPS, chunk_tokens=8)))
    settings = whole_settings(tmp_path / "b", "later", STEPS, chunk_tokens=8)
    trainer = msgspec.structs.replace(
        settings.trainer, update_weight_transport="shared-memory", store_before_commit=False
    )
    settings, before = msgspec.structs.replace(settings, trainer=trainer), held()
    seen: list[Path] = []

    async def kill(view: Watching) -> None:
        """Kill the trainer twice, as soon as a step is committed; the second time its memory is lost with it."""
        await view.until(lambda progress: progress.state.version >= 2)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)
        await view.until(lambda progress: progress.state.version >= 4)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)
        for place in held() - before:
            seen.append(place)
            shutil.rmtree(place)

    asyncio.run(run_with(settings, kill))
    first, events = events_of(tmp_path / "a" / "runs" / "first"), events_of(run := tmp_path / "b" / "runs" / "later")
    assert len([event for event in of(events, WorkerLost) if event.role == "trainer"]) == 2
    assert seen, "the trainer held versions in memory"
    for kind in (BatchSealed, StepCommitted):
        digests = [[event.digest if kind is BatchSealed else event.weights_digest for event in of(log, kind)]
                   for log in (first, events)]  # fmt: skip
        assert digests[0] == digests[1], kind
    committed = {event.version: event for event in of(events, StepCommitted)}
    assert not any(event.stored for event in committed.values())
    stored = {event.version: event for event in of(events, WeightsStored)}
    assert stored.keys() == committed.keys()
    for version, event in stored.items():
        assert verify(event.url, committed[version].weights_digest)
    assert WeightsCarrier.SHARED_MEMORY in {event.carrier for event in of(events, WeightsActivated)}
    assert main(["audit", str(run)]) == 0, capsys.readouterr().out
    assert held() <= before, "a run that ends gives its memory back"
