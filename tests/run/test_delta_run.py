"""A real run that stores deltas: the weights of a full run, also if its engine is killed when a delta is published.

The same with the deltas in a real S3 server, where the trainer is killed too.
"""

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
from storage.folders.cache import FOLDER
from storage.weights.delta_version import base_of
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests.run.tiny import START_S, Watching, events_of, of, run_with
from tests.run.whole import whole_settings
from tests.storage.seaweed import as_s3

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
    _check_export(run, published, tmp_path / "out")


def _check_export(run: Path, published: dict[int, WeightsPublished], out: Path) -> None:
    assert main(["export", str(run), "--to", "weights", "--version", "2", "--out", str(out)]) == 0
    assert verify(out).digest == published[2].digest


def test_deltas_in_an_object_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(run_with(whole_settings(tmp_path / "a", "full", STEPS, chunk_tokens=8)))
    cache, url, run = tmp_path / "cache", "s3://slime/weights", tmp_path / "b" / "runs" / "delta"
    monkeypatch.setenv(FOLDER, str(tmp_path / "other-cache"))  # of the commands below, as on another host

    async def kill(view: Watching) -> None:
        """Kill the engine, and its host's cache with it, and then the trainer, which reads its parent's files again."""
        await view.until(lambda progress: progress.state.version >= 1)
        os.kill(view.pid_of("engine"), signal.SIGKILL)
        shutil.rmtree(cache, ignore_errors=True)
        await view.until(lambda progress: progress.state.version >= 2)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)

    with as_s3(tmp_path / "s3"):
        settings = with_deltas(whole_settings(tmp_path / "b", "delta", STEPS, chunk_tokens=8), tmp_path / "here")
        at = msgspec.structs.replace(settings.run, weights_url=url, cache_dir=str(cache))
        engine = msgspec.structs.replace(settings.engine, update_weight_local_checkpoint_dir=None)
        asyncio.run(run_with(msgspec.structs.replace(settings, run=at, engine=engine), kill))
        first, events = events_of(tmp_path / "a" / "runs" / "full"), events_of(run)
        assert {"engine", "trainer"} <= {event.role for event in of(events, WorkerLost)}
        digests = [[event.weights_digest for event in of(log, StepCommitted)] for log in (first, events)]
        assert digests[0] == digests[1]
        published = {event.version: event for event in of(events, WeightsPublished)}
        store = WeightStore(f"{url}/delta")
        assert store.versions() == list(range(STEPS + 1))
        for version, event in published.items():
            assert (base_of(event.url) is not None) == (event.kind is WeightsKind.DELTA)
            verify(store.folder(version, event.digest), event.digest)
        assert {version for version, event in published.items() if event.kind is WeightsKind.FULL} >= {0, 3}
        assert len([event for event in published.values() if event.kind is WeightsKind.DELTA]) >= 2
        assert all(event.digest == published[event.version].digest for event in of(events, WeightsActivated))
        for words in (["audit", str(run)], ["retrain", str(run)]):
            assert main(words) == 0, capsys.readouterr().out
        _check_export(run, published, tmp_path / "out")
