"""Engines receive versions from the trainer's sender, and take files if that fails. Engine and sender are scripts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from schemas.errors import EngineError
from schemas.event import Event
from schemas.subjects import every_event
from schemas.transfers import TransferBegun, TransferJoined
from schemas.weights import WeightsActivated, WeightsCarrier
from serve_apps.engines.carriers import collective
from serve_apps.engines.carriers.carrier import WeightPlaces
from serve_apps.engines.carriers.delivery import FAILURES
from serve_apps.engines.engine_weights import EngineWeights
from slime_events.core.run.participant import Participant
from storage.cancellation import end_all
from storage.group_commit import GroupCommit
from storage.log import once
from storage.memory_log import MemoryLog
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests import made
from tests.scripted_engine import ScriptedEngine

FILES, COLLECTIVE = WeightsCarrier.FILES, WeightsCarrier.COLLECTIVE


class Receiving(ScriptedEngine):
    """Receives every version, or fails for a reason that the test sets."""

    ranks = 2

    def __init__(self) -> None:
        super().__init__(version=-1)
        self.group_ranks, self.group_backend = self.ranks, "gloo"
        self.received: list[tuple[int, int, str]] = []
        self.loaded: list[int] = []
        self.reason: str | None = None
        self.dies = False

    async def receive_weights(self, group: TransferBegun, rank: int, digest: str) -> str | None:
        if self.dies:
            raise EngineError("SGLang ended")
        self.received.append((group.epoch, rank, digest))
        if self.reason is None:
            self.version = group.version
        return self.reason

    async def update_weights(self, folder: str, version: int) -> float:
        assert verify(folder).version == version
        self.loaded.append(version)
        return await super().update_weights(folder, version)


class Run:
    """A log, a store, and a trainer that begins an epoch for each engine that joins."""

    def __init__(self, root: Path) -> None:
        self.log, self.places = MemoryLog("r"), WeightPlaces()
        self.store = WeightStore(str(root / "w"), durable=False)
        self.trainer = Participant(self.log, "trainer", "t")
        self.digests: list[str] = []

    async def publish(self, version: int) -> None:
        manifest = self.store.write(version, [("w", "F32", (5,), bytes([version]) * 20)], version - 1 or None)
        self.digests.append(manifest.digest)
        url = self.store.folder(version)
        event = made.published(version, url=url, digest=manifest.digest, carrier=COLLECTIVE)
        await self.log.append([once(self.trainer.enclose(event))])

    async def begin(self) -> None:
        """Begin epochs, until cancelled."""
        epoch = 0
        async for recorded in self.log.read(1, every_event("r"), follow=True):
            event = recorded.envelope.event
            if isinstance(event, TransferJoined):
                epoch += 1
                members, world = {"other": 1, event.engine: 2}, 2 + event.ranks
                begun = TransferBegun(
                    epoch=epoch, version=event.version, address="h", port=1, members=members, world=world
                )
                await self.log.append([once(self.trainer.enclose(begun))])

    async def events(self) -> list[Event]:
        return [recorded.envelope.event async for recorded in self.log.read(1, every_event("r"))]

    async def activated(self, count: int) -> list[WeightsCarrier]:
        """Return how the versions came, after at least `count` of them."""
        async with asyncio.timeout(20.0):
            while True:
                events = [event for event in await self.events() if isinstance(event, WeightsActivated)]
                if len(events) >= count:
                    assert [event.digest for event in events] == [self.digests[event.version] for event in events]
                    return [event.carrier for event in events]
                await asyncio.sleep(0.01)

    @contextlib.asynccontextmanager
    async def engine(
        self, name: str = "e", *, begins: bool = True
    ) -> AsyncIterator[tuple[Receiving, asyncio.Task[None]]]:
        """A new engine, and the task that loads weights. begins: whether the trainer answers."""
        engine = Receiving()
        await engine.start(1.0)
        async with GroupCommit(self.log) as commit:
            worker = Participant(self.log, "engine", name)
            weights = EngineWeights(worker, engine, commit, places=self.places, deadline_s=20.0)
            tasks = [asyncio.create_task(part()) for part in (weights.follow, weights.switch)]
            trainer = [asyncio.create_task(self.begin())] if begins else []
            try:
                yield engine, tasks[1]
            finally:
                await end_all(*tasks, *trainer)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


async def test_updates_come_from_the_group_and_the_first_version_from_files(run: Run) -> None:
    async with run.engine() as (engine, _):
        for version in range(3):
            await run.publish(version)
            await run.activated(version + 1)
    assert await run.activated(3) == [FILES, COLLECTIVE, COLLECTIVE]
    assert engine.loaded == [0]
    assert engine.received == [(1, 2, run.digests[1]), (2, 2, run.digests[2])]
    joins = [event for event in await run.events() if isinstance(event, TransferJoined)]
    assert [(join.version, join.engine, join.ranks, join.backend) for join in joins] == [
        (version, "e", 2, "gloo") for version in (1, 2)
    ]


async def test_an_engine_that_has_not_received_all_loads_the_files(run: Run) -> None:
    """After two failures in a row it asks no more; a success ends a row."""
    reasons: list[str | None] = ["other bytes", None, "other bytes", "other bytes", None]
    async with run.engine() as (engine, _):
        await run.publish(0)
        await run.activated(1)
        for version, reason in enumerate(reasons, 1):
            engine.reason = reason
            await run.publish(version)
            await run.activated(version + 1)
    assert await run.activated(6) == [FILES, FILES, COLLECTIVE, FILES, FILES, FILES]
    assert len(engine.received) == 4
    assert engine.loaded == [0, 1, 3, 4, 5]
    assert run.places.failures[COLLECTIVE] == FAILURES


async def test_a_trainer_that_does_not_answer_is_not_waited_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "BEGIN_S", 0.05)
    async with run.engine(begins=False) as (engine, _):
        for version in range(4):
            await run.publish(version)
            assert await run.activated(version + 1) == [FILES] * (version + 1)
    assert not engine.received
    assert len([event for event in await run.events() if isinstance(event, TransferJoined)]) == FAILURES


async def test_an_engine_that_dies_in_the_group_is_replaced_and_counts(run: Run) -> None:
    async with run.engine() as (engine, task):
        await run.publish(0)
        await run.activated(1)
        engine.dies = True
        await run.publish(1)
        with pytest.raises(EngineError):
            await asyncio.wait_for(asyncio.shield(task), 20)
    assert run.places.failures[COLLECTIVE] == 1
    async with run.engine("e2"):
        assert await run.activated(2) == [FILES, FILES]


async def test_an_engine_that_cannot_receive_takes_files(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiving, "ranks", 0)
    async with run.engine() as (engine, _):
        for version in range(2):
            await run.publish(version)
            await run.activated(version + 1)
    assert await run.activated(2) == [FILES, FILES]
    assert not engine.received
