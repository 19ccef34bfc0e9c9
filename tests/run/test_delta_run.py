"""A real run that stores deltas: the weights of a full run, also if its engine is killed when a delta is published."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import msgspec
import pytest

from schemas.batches import BatchSealed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsKind, WeightsPublished
from schemas.workers import WorkerLost
from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests.run.tiny import START_S, Watching, events_of, of, run_with
from tests.run.whole import whole_settings

pytestmark = [pytest.mark.real, pytest.mark.soak]

STEPS = 4


def with_deltas(settings: TrainSettings, here: Path) -> TrainSettings:
    """Every third version is whole, and every version is kept."""
    trainer = msgspec.structs.replace(
        settings.trainer, update_weight_mode="delta", update_weight_full_every=3, keep_weights=0
    )
    engine = msgspec.structs.replace(settings.engine, update_weight_local_checkpoint_dir=str(here))
    return msgspec.structs.replace(settings, trainer=trainer, engine=engine)


def _until_there(folder: Path, pattern: str) -> None:
    end = time.monotonic() + START_S
    while not list(folder.glob(pattern)):
        assert time.monotonic() < end
        time.sleep(0.001)


def test_deltas_give_the_weights_of_a_full_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    full = whole_settings(tmp_path / "a", "full", STEPS, chunk_tokens=8)
    asyncio.run(run_with(full))
    here = tmp_path / "here"
    settings = with_deltas(whole_settings(tmp_path / "b", "delta", STEPS, chunk_tokens=8), here)
    run = tmp_path / "b" / "runs" / "delta"

    async def kill(view: Watching) -> None:
        """Kill the engine that is about to apply version 2; the next one on this host has no copies."""
        await asyncio.to_thread(_until_there, run / "weights", "v000002-*")
        os.kill(view.pid_of("engine"), signal.SIGKILL)
        shutil.rmtree(here, ignore_errors=True)

    asyncio.run(run_with(settings, kill))
    first, events = events_of(tmp_path / "a" / "runs" / "full"), events_of(run)
    assert [event.role for event in of(events, WorkerLost)].count("engine") >= 1
    for kind in (BatchSealed, StepCommitted):
        digests = [[event.digest if kind is BatchSealed else event.weights_digest for event in of(log, kind)]
                   for log in (first, events)]  # fmt: skip
        assert digests[0] == digests[1], kind
    published = {event.version: event for event in of(events, WeightsPublished)}
    assert {version: event.kind is WeightsKind.DELTA for version, event in published.items()} == {
        0: False, 1: True, 2: True, 3: False, 4: True,
    }  # fmt: skip
    activated = of(events, WeightsActivated)
    assert all(event.digest == published[event.version].digest for event in activated)
    assert set(range(STEPS)) <= {event.version for event in activated}
    store = WeightStore(str(run / "weights"))
    assert store.versions() == list(range(STEPS + 1))
    for version in store.versions():
        verify(store.folder(version), published[version].digest)
    for words in (["audit", str(run)], ["retrain", str(run)]):
        assert main(words) == 0, capsys.readouterr().out
    out = tmp_path / "out"
    assert main(["export", str(run), "--to", "weights", "--version", "2", "--out", str(out)]) == 0
    assert verify(out).digest == published[2].digest
