"""Engines load versions that are stored as deltas from whole, verified copies on their host."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

from schemas.errors import WeightsDamaged
from schemas.subjects import of_type
from schemas.weights import WeightsActivated, WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.engine_weights import EngineWeights
from slime_events.core.run.participant import Participant
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.log import append_all, once
from storage.memory_log import MemoryLog
from storage.weights.delta_rule import DeltaRule
from storage.weights.files import is_delta
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests import made
from tests.scripted_engine import ScriptedEngine
from tests.serve_apps.test_engine_weights import evaluation_of


class Loading(ScriptedEngine):
    """Verifies what it loads, and keeps the folders."""

    def __init__(self) -> None:
        super().__init__(version=-1)
        self.loaded: list[Path] = []
        self.has_loaded = asyncio.Event()

    async def update_weights(self, folder: str, version: int) -> float:
        assert verify(folder).version == version
        assert not is_delta(Path(folder))
        self.loaded.append(Path(folder))
        self.has_loaded.set()
        return await super().update_weights(folder, version)


Running = tuple[EngineWeights, Loading, list[asyncio.Task[None]]]


@contextlib.asynccontextmanager
async def running(log: MemoryLog, copies: Path) -> AsyncIterator[Running]:
    """The weights of an engine that has just started, the engine, and the tasks."""
    engine = Loading()
    await engine.start(1.0)
    async with GroupCommit(log) as commit:
        places = WeightPlaces(copies=str(copies))
        weights = EngineWeights(Participant(log, "engine", "e"), engine, commit, places=places, deadline_s=20.0)
        tasks = [asyncio.create_task(part()) for part in (weights.follow, weights.switch)]
        try:
            yield weights, engine, tasks
        finally:
            await end_all(*tasks)


async def publish(log: MemoryLog, store: WeightStore, versions: range) -> list[WeightsPublished]:
    events = []
    for version in versions:
        tensors = [("w", "F32", (500,), bytes([version % 256]) + bytes(1999)), ("v", "F32", (1,), bytes(4))]
        manifest = store.write(version, tensors, version - 1 if version else None)
        url = store.folder(version, manifest.digest)
        events.append(made.published(version, url=url, digest=manifest.digest, bytes=manifest.bytes))
    worker = Participant(log, "trainer")
    await append_all(log, [once(worker.enclose(event)) for event in events])
    return events


async def activated(log: MemoryLog, count: int) -> list[WeightsActivated]:
    """All activations, after at least `count`."""
    async with asyncio.timeout(20.0):
        while True:
            events = [recorded.envelope.event async for recorded in log.read(1, of_type(log.run, "weights.activated"))]
            done = [event for event in events if isinstance(event, WeightsActivated)]
            if len(done) >= count:
                return done
            await asyncio.sleep(0.01)


async def test_an_engine_goes_along_joins_late_and_loses_its_copies(tmp_path: Path) -> None:
    log, store = MemoryLog("delta"), WeightStore(str(tmp_path / "w"), durable=False, deltas=DeltaRule(full_every=5))
    here = tmp_path / "here"
    published = await publish(log, store, range(4))
    async with running(log, here) as (_, engine, _tasks):
        await activated(log, 1)  # it joined late: version 0 and three deltas
        published += await publish(log, store, range(4, 5))
        await activated(log, 2)
        shutil.rmtree(here)
        published += await publish(log, store, range(5, 6))  # full
        await activated(log, 3)
        published += await publish(log, store, range(6, 7))
        events = await activated(log, 4)
    assert [event.version for event in events] == [3, 4, 5, 6]
    digests = {event.version: event.digest for event in published}
    assert all(event.digest == digests[event.version] for event in events)
    assert [folder.parent == here for folder in engine.loaded] == [True, True, False, True]


async def test_an_evaluation_gets_an_older_version_again(tmp_path: Path) -> None:
    log, store = MemoryLog("delta"), WeightStore(str(tmp_path / "w"), durable=False, deltas=DeltaRule(full_every=50))
    await publish(log, store, range(6))
    async with running(log, tmp_path / "here") as (weights, engine, _tasks):
        await activated(log, 1)
        claim = await weights.claim(evaluation_of(2))
        assert engine.version == 2
        weights.unclaim(claim)
        events = await activated(log, 3)
    assert [(event.version, event.returns) for event in events] == [(5, 0), (2, 0), (5, 1)]


async def test_a_damaged_delta_is_never_activated(tmp_path: Path) -> None:
    log, store = MemoryLog("delta"), WeightStore(str(tmp_path / "w"), durable=False, deltas=DeltaRule(full_every=50))
    await publish(log, store, range(3))
    (delta,) = Path(store.folder(1)).glob("delta-*")
    data = bytearray(delta.read_bytes())
    data[-1] ^= 1
    delta.write_bytes(data)
    async with running(log, tmp_path / "here") as (_, engine, tasks):
        done, _waiting = await asyncio.wait(tasks, timeout=20.0, return_when=asyncio.FIRST_COMPLETED)
        (failed,) = done
        assert isinstance(failed.exception(), WeightsDamaged)
        assert engine.loaded == []
    assert not [event async for event in log.read(1, of_type(log.run, "weights.activated"))]


async def test_a_copy_with_other_weights_than_published_is_never_activated(tmp_path: Path) -> None:
    log, store = MemoryLog("delta"), WeightStore(str(tmp_path / "w"), durable=False, deltas=DeltaRule(full_every=50))
    here = tmp_path / "here"
    await publish(log, store, range(2))
    async with running(log, here) as (_, engine, _tasks):
        await activated(log, 1)
    (copy,) = engine.loaded
    other = WeightStore(str(tmp_path / "other"), durable=False)
    other.write(1, [("w", "F32", (500,), bytes(2000)), ("v", "F32", (1,), bytes(4))], None)
    shutil.rmtree(copy)
    shutil.copytree(other.folder(1), copy)
    async with running(log, here) as (_, engine, _tasks):
        await asyncio.wait_for(engine.has_loaded.wait(), 20.0)
        events = await activated(log, 1)
        assert verify(engine.loaded[0]).digest == events[0].digest
