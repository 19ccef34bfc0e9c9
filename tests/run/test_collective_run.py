"""A real run whose engine receives weights from the trainer's sender has the weights of a run by files."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from schemas.batches import BatchSealed
from schemas.steps import StepCommitted
from schemas.transfers import TransferBegun, TransferEnded, TransferJoined
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsPublished
from schemas.workers import WorkerLost
from slime_events.app.cli.main import main
from tests.run.tiny import Watching, events_of, of, run_with
from tests.run.whole import whole_settings

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(900)]

STEPS = 5


def test_received_weights_are_those_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_files = whole_settings(tmp_path / "a", "files", STEPS, chunk_tokens=8)
    asyncio.run(run_with(by_files))
    settings = whole_settings(tmp_path / "b", "sent", STEPS, chunk_tokens=8)
    trainer = msgspec.structs.replace(settings.trainer, update_weight_transport="collective")
    settings = msgspec.structs.replace(settings, trainer=trainer)
    begun: list[int] = []

    async def kill(view: Watching) -> None:
        """Kill the engine, the sender and the trainer, each of them when a version is new and may be on its way."""
        await view.until(lambda progress: progress.state.version >= 1)
        os.kill(view.pid_of("engine"), signal.SIGKILL)
        await view.until(lambda progress: progress.state.version >= 3)
        begun.append(_kill_sender(view.pid_of("trainer")))
        await view.until(lambda progress: progress.state.version >= 4)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)

    asyncio.run(run_with(settings, kill))
    first, events = events_of(tmp_path / "a" / "runs" / "files"), events_of(run := tmp_path / "b" / "runs" / "sent")
    assert {"engine", "trainer"} <= {event.role for event in of(events, WorkerLost)}
    assert begun, "the trainer had a sender"
    for kind in (BatchSealed, StepCommitted):
        digests = [[event.digest if kind is BatchSealed else event.weights_digest for event in of(log, kind)]
                   for log in (first, events)]  # fmt: skip
        assert digests[0] == digests[1], kind
    published = {event.version: event for event in of(events, WeightsPublished)}
    assert {event.carrier for event in published.values()} == {WeightsCarrier.COLLECTIVE}
    activated = of(events, WeightsActivated)
    assert all(event.digest == published[event.version].digest for event in activated)
    received = {(event.version, event.engine) for event in activated if event.carrier is WeightsCarrier.COLLECTIVE}
    assert received, "at least one version came from the sender"
    members = {(event.version, engine) for event in of(events, TransferBegun) for engine in event.members}
    joined = {(event.version, event.engine) for event in of(events, TransferJoined)}
    assert received <= members <= joined
    ended = [event.epoch for event in of(events, TransferEnded)]
    assert len(ended) == len(set(ended))
    assert set(ended) <= {event.epoch for event in of(events, TransferBegun)}
    assert main(["audit", str(run)]) == 0, capsys.readouterr().out


def _kill_sender(trainer: int) -> int:
    """Kill the process that sends weights, and return its pid."""
    [sender] = [
        child
        for child in psutil.Process(trainer).children(recursive=True)
        if "actors.trainer.transfer_sender" in child.cmdline()
    ]
    sender.kill()
    return sender.pid
