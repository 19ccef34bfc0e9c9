"""Versions that are stored after their commits: each is stored in the end, although processes die at any append."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.trainer.version_files import MOST_HELD
from schemas.errors import StorageError, TrainerError
from schemas.evals import EvalCompleted
from schemas.prompts import PromptSubmitted
from schemas.runs import RunFailed
from schemas.steps import StepCommitted
from schemas.weights import WeightsActivated, WeightsCarrier, WeightsPublished, WeightsStored
from slime_events.analysis.audit.audit import Audit
from slime_events.analysis.audit.ledger import Rules
from slime_events.core.config.algorithm import AlgorithmSettings
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase
from storage.memory_log import MemoryLog
from storage.weights.store import WeightStore
from storage.weights.stored_version import verify
from tests.simulation.crash import Fate, Scope
from tests.simulation.parts import NoisyRanks, ScriptedRanks
from tests.simulation.simulation import Simulation, make_plan
from tests.simulation.test_crash import PLAIN, at_every_append, events_of, figures, run_scene
from tests.simulation.test_trainer_recovery import STEP

LATER = replace(PLAIN, stores_later=True)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process has no thread that continues to write; so nothing leaves the event loop here."""

    async def at_once(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return call(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


def stored(log: MemoryLog) -> dict[str, Any]:
    """Check that each committed version is stored once, with the committed weights; return the run's figures."""
    committed = {event.version: event for event in events_of(log, StepCommitted)}
    events = events_of(log, WeightsStored)
    assert [event.version for event in events] == sorted(committed)
    for event in events:
        assert not committed[event.version].stored
        verify(event.url, committed[event.version].weights_digest)
    auditor = Audit(log.run, rules=Rules(LATER.plan, AlgorithmSettings()))
    for record in log.records:
        auditor.apply(record)
    report = auditor.finish()
    assert report.clean, report.findings
    return figures(log)


@pytest.mark.parametrize("scope", Scope)
@pytest.mark.parametrize("loses_memory", [False, True])
@pytest.mark.usefixtures("one_thread")
async def test_the_trainer_dies_at_each_append(tmp_path: Path, scope: Scope, loses_memory: bool) -> None:
    scene = replace(LATER, loses_memory=loses_memory)
    before = await run_scene(PLAIN, tmp_path / "before", Fate())
    assert not events_of(before, WeightsStored)
    assert stored(await run_scene(scene, tmp_path / "after", Fate())) == figures(before)
    assert await at_every_append(scene, tmp_path, stored, scope=scope, role="trainer") > 8
    assert not list(tmp_path.glob("*/memory")), "a run that ends gives its memory back"


@pytest.mark.usefixtures("one_thread")
async def test_every_process_dies_at_each_append(tmp_path: Path) -> None:
    assert await at_every_append(LATER, tmp_path, stored) > 25


class Disk:
    """A disk that takes no version after `last` until it is `open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
        self.open, adopt = threading.Event(), WeightStore.adopt

        def slowly(store: WeightStore, folder: str) -> str:
            if int(Path(folder).name[1:7]) > last:
                assert self.open.wait(60.0)
            return adopt(store, folder)

        monkeypatch.setattr(WeightStore, "adopt", slowly)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk that takes version 1 and no more."""
    disk = Disk(monkeypatch, last=1)
    yield disk
    disk.open.set()


def later(tmp_path: Path, ranks: Any = None, **plan: Any) -> Simulation:
    """A run whose trainer stores versions after their commits. Its engines take them from its memory."""
    rows = {"held": ["one"]} if "eval_every" in plan else {}
    memory = {"memory": str(tmp_path / "memory")}
    return Simulation(tmp_path, make_plan(**plan), ranks=ranks, evaluations=rows, training=memory, shares=str(tmp_path))


async def test_training_goes_on_while_files_are_written_but_not_without_end(tmp_path: Path, disk: Disk) -> None:
    async with later(tmp_path) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 1 + MOST_HELD)
        await asyncio.sleep(0.1)
        assert len(sim.events(StepCommitted)) == 1 + MOST_HELD, "a further step waits for the disk"
        assert [event.version for event in sim.events(WeightsStored)] == [1]
        activated = await sim.until(WeightsActivated, 4)
        assert {event.carrier for event in activated[1:]} == {WeightsCarrier.SHARED_MEMORY}
        disk.open.set()
        assert await sim.finish() is RunPhase.FINISHED
    assert [event.version for event in sim.events(WeightsStored)] == [1, 2, 3, 4, 5]
    published = {event.version: event.url for event in sim.events(WeightsPublished)}
    assert {event.version: event.url for event in sim.events(WeightsStored)} == {
        version: url for version, url in published.items() if version
    }


async def test_a_run_ends_and_evaluates_when_its_versions_are_stored(tmp_path: Path, disk: Disk) -> None:
    plan = {"steps": 3, "eval_every": 1, "eval_names": ("held",), "eval_exact": True}
    async with later(tmp_path, **plan) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 3)
        await sim.until(EvalCompleted, 2)
        await asyncio.sleep(0.1)
        assert sim.fold().phase is RunPhase.RUNNING
        assert {event.version for event in sim.events(PromptSubmitted) if event.dataset == "held"} == {0, 1}
        disk.open.set()
        assert await sim.finish() is RunPhase.FINISHED
    order = [recorded.envelope.event for recorded in sim.log.records]
    for event in sim.events(WeightsStored):
        (begun,) = sim.events(PromptSubmitted, dataset="held", version=event.version)
        assert order.index(event) < order.index(begun)


async def test_a_version_without_room_in_memory_is_stored_before_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.trainer.version_files.available_memory", lambda: 63)  # a version has 32 bytes
    async with later(tmp_path) as sim:
        sim.start_engine(STEP)
        assert await sim.finish() is RunPhase.FINISHED
    assert all(event.stored for event in sim.events(StepCommitted))
    assert not sim.events(WeightsStored)


async def test_versions_in_memory_are_stored_by_the_next_trainer(tmp_path: Path, disk: Disk) -> None:
    async with later(tmp_path) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 3)
        await sim.kill_trainer()
        disk.open.set()
        sim.start_trainer(ScriptedRanks(disk=sim.ranks.disk))
        stored = await sim.until(WeightsStored, 3)
        assert [event.version for event in stored] == [1, 2, 3]
        assert await sim.finish() is RunPhase.FINISHED


async def test_a_version_that_is_damaged_in_memory_is_trained_again(tmp_path: Path, disk: Disk) -> None:
    async with later(tmp_path) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 3)
        await sim.kill_trainer()
        (file,) = (tmp_path / "memory").glob("v000002-*/model.safetensors")
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        disk.open.set()
        sim.start_trainer(ScriptedRanks(disk=sim.ranks.disk))
        assert await sim.finish() is RunPhase.FINISHED
    committed = {event.version: event.weights_digest for event in sim.events(StepCommitted)}
    assert {event.version: event.digest for event in sim.events(WeightsStored)} == committed
    verify(sim.events(WeightsStored, version=2)[0].url, committed[2])


async def test_a_run_that_failed_keeps_its_memory_until_it_is_resumed(tmp_path: Path, disk: Disk) -> None:
    async with later(tmp_path) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 3)
        await sim.kill_trainer()
        await Participant(sim.log, "launcher").append_fenced(RunFailed(role="trainer", reason="lost", at_events=1))
        assert await asyncio.wait_for(sim.start_trainer(ScriptedRanks()), 60) == 3
        assert WeightStore(str(tmp_path / "memory")).versions()[-2:] == [2, 3]


async def test_memory_of_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir(mode=0o700)
    (tmp_path / "memory").chmod(0o777)
    async with later(tmp_path) as sim:
        sim.start_engine(STEP)
        with pytest.raises(StorageError, match="not a folder of this user alone"):
            await sim.finish()


async def test_bits_that_do_not_come_back_and_were_not_stored_end_the_run(tmp_path: Path, disk: Disk) -> None:
    async with later(tmp_path, NoisyRanks()) as sim:
        sim.start_engine(STEP)
        await sim.until(StepCommitted, 3)
        await sim.kill_trainer()
        shutil.rmtree(tmp_path / "memory")
        disk.open.set()
        with pytest.raises(TrainerError, match=r"version 2 with digest \w{64}, were lost .* branch RUN --from 1`"):
            await asyncio.wait_for(sim.start_trainer(NoisyRanks(disk=sim.ranks.disk)), 60)
