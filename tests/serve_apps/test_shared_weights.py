"""Engines on the trainer's host load versions from the trainer's memory, and from files if that fails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from schemas.errors import EngineError
from schemas.subjects import of_type
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsPublished
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.carriers.delivery import FAILURES
from serve_apps.engines.engine_folder import PREFIX, clear_abandoned
from serve_apps.engines.engine_weights import EngineWeights
from slime_events.core.run.participant import Participant
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.log import append_all, once
from storage.memory_log import MemoryLog
from storage.weights import shared_versions
from storage.weights.sealed_files import copy_sealed
from storage.weights.shared_versions import SharedVersions
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests import made
from tests.scripted_engine import ScriptedEngine

FILES, MEMORY = WeightsCarrier.FILES, WeightsCarrier.SHARED_MEMORY


class Loading(ScriptedEngine):
    """Verifies what it loads, and fails if told to."""

    def __init__(self) -> None:
        super().__init__(version=-1)
        self.loaded: list[Path] = []
        self.fails = False

    async def update_weights(self, folder: str, version: int) -> float:
        assert verify(folder).version == version
        self.loaded.append(Path(folder))
        if self.fails:
            raise EngineError("it does not load")
        return await super().update_weights(folder, version)


class Host:
    """A trainer's store and an engine's place on one host."""

    def __init__(self, root: Path) -> None:
        self.run = f"run-{secrets.token_hex(8)}"
        self.offering = SharedVersions(self.run, lambda version: True)
        self.store = WeightStore(str(root / "w"), durable=False, offering=self.offering)
        self.log = MemoryLog(self.run)
        self.places = WeightPlaces(run=self.run)

    async def publish(self, version: int) -> WeightsPublished:
        tensors = [("w", "F32", (500,), bytes([version]) * 2000), ("v", "F32", (1,), bytes(4))]
        manifest = self.store.write(version, tensors, version - 1 if version else None)
        url, carrier = self.store.folder(version), self.store.carrier(version, manifest.digest)
        event = made.published(version, url=url, digest=manifest.digest, bytes=manifest.bytes, carrier=carrier)
        await append_all(self.log, [once(Participant(self.log, "trainer").enclose(event))])
        return event

    async def activated(self, count: int) -> list[WeightsCarrier]:
        """Return how the versions came, after at least `count` of them."""
        async with asyncio.timeout(20.0):
            while True:
                subject = of_type(self.log.run, "weights.activated")
                events = [recorded.envelope.event async for recorded in self.log.read(1, subject)]
                if len(events) >= count:
                    return [event.carrier for event in events if isinstance(event, WeightsActivated)]
                await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def engine(self, name: str = "e") -> AsyncIterator[tuple[Loading, asyncio.Task[None]]]:
        """A new engine here, and the task that loads weights."""
        engine = Loading()
        await engine.start(1.0)
        async with GroupCommit(self.log) as commit:
            worker = Participant(self.log, "engine", name)
            weights = EngineWeights(worker, engine, commit, places=self.places, deadline_s=20.0)
            tasks = [asyncio.create_task(part()) for part in (weights.follow, weights.switch)]
            try:
                yield engine, tasks[1]
            finally:
                await end_all(*tasks)


def _left() -> set[str]:
    """Folders of engines, and descriptors of this process that are files in memory."""
    memory = {
        number for number in os.listdir("/proc/self/fd")
        if os.path.islink(link := f"/proc/self/fd/{number}") and os.readlink(link).startswith("/memfd:")
    }  # fmt: skip
    return memory | {path.name for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    (own := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(own))
    before, host = _left(), Host(tmp_path)
    yield host
    host.store.retire()
    assert _left() == before


async def test_versions_come_from_memory(host: Host) -> None:
    async with host.engine() as (engine, _):
        for version in range(3):
            await host.publish(version)
            assert await host.activated(version + 1) == [MEMORY] * (version + 1)
            host.store.retire(version)
    assert not {Path(host.store.folder(version)) for version in range(3)} & set(engine.loaded)


async def test_an_engine_on_another_host_reads_the_files(host: Host) -> None:
    """The name is not known there, and neither is it when the trainer has died."""
    published = await host.publish(0)
    assert published.carrier is MEMORY
    host.offering.retire(None)
    async with host.engine() as (engine, _):
        assert await host.activated(1) == [FILES]
        assert engine.loaded == [Path(host.store.folder(0))]
        for version in range(1, 5):
            await host.publish(version)
            await host.activated(version + 1)
    assert await host.activated(5) == [FILES] + [MEMORY] * 4, "a version that is gone is no failure"


async def test_other_bytes_than_the_committed_are_not_loaded(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After two failures in a row the engine asks no more."""
    other = WeightStore(str(tmp_path / "other"), durable=False)
    other.write(0, [("w", "F32", (500,), bytes(2000)), ("v", "F32", (1,), bytes([1, 0, 0, 0]))], None)
    wrong = Path(other.folder(0))
    with monkeypatch.context() as patched:
        patched.setattr(shared_versions, "copy_sealed", lambda path: copy_sealed(wrong / path.name))
        async with host.engine() as (engine, _):
            for version in range(2):
                assert (await host.publish(version)).carrier is MEMORY
                assert await host.activated(version + 1) == [FILES] * (version + 1)
    assert host.places.failures[MEMORY] == FAILURES
    async with host.engine("e2") as (engine, _):
        await host.publish(2)
        assert await host.activated(3) == [FILES] * 3
        assert engine.loaded[-1] == Path(host.store.folder(2))


async def test_engines_that_cannot_load_from_memory_twice_take_the_files(host: Host) -> None:
    """Each is replaced: what a failed load leaves in it is not known."""
    await host.publish(0)
    for number in range(2):
        async with host.engine(f"e{number}") as (engine, task):
            engine.fails = True
            with pytest.raises(EngineError):
                await asyncio.wait_for(asyncio.shield(task), 20)
    async with host.engine("e2") as (engine, _):
        assert await host.activated(1) == [FILES]


async def test_a_success_ends_a_row_of_failures(host: Host) -> None:
    host.places.failures[MEMORY] = 1
    await host.publish(0)
    async with host.engine() as (_, _):
        assert await host.activated(1) == [MEMORY]
    assert host.places.failures[MEMORY] == 0


_ENGINE = """
import sys, time
from contextlib import ExitStack
from serve_apps.engines.carriers import shared_memory
from serve_apps.engines.carriers.carrier import WeightPlaces
from schemas.weights import WeightsCarrier, WeightsPublished

def stop(*_):
    print("there", flush=True)
    time.sleep(60)

setattr(shared_memory, sys.argv[1], stop)
published = WeightsPublished(version=0, parent=None, url="", digest=sys.argv[3], bytes=1)
shared_memory.SharedMemory(WeightPlaces(run=sys.argv[2])).prepare(published, held := ExitStack())
stop()
"""


def _kill_engine_at(stage: str, host: Host, digest: str) -> None:
    """Kill a process that takes version 0 when it comes to the stage."""
    command = [sys.executable, "-c", _ENGINE, stage, host.run, digest]
    own = os.environ | {"TMPDIR": tempfile.gettempdir()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=own) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"there\n"
        assert len(list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))) == (stage != "EngineFolder")
        engine.kill()


@pytest.mark.parametrize("stage", ["EngineFolder", "verify", "load"])
async def test_an_engine_that_is_killed_with_files_of_memory_leaves_nothing(host: Host, stage: str) -> None:
    """Before it has links to them, before it has checked them, and when it loads them."""
    published = await host.publish(0)
    await asyncio.to_thread(_kill_engine_at, stage, host, published.digest)
    clear_abandoned()
    assert not list(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    async with host.engine():
        assert await host.activated(1) == [MEMORY], "the trainer has it still"
