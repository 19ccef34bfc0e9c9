"""`Supervisor`: what the launcher makes of a log, beside roles that do nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from schemas.errors import TrainerError
from schemas.event import Event
from schemas.runs import RunFailed
from schemas.subjects import of_type
from schemas.trainers import Fidelity, TrainerRestored
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.launch import machine_watch, supervisor
from slime_events.app.launch.roles import ARCHIVIST
from slime_events.app.launch.supervisor import Supervisor
from slime_events.core.planning.homes import RAY_NODE
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import Incarnation
from slime_events.core.state.run import RunPhase
from slime_events.model.progress import Progress
from storage.follow import RecordFollower
from storage.log import ForeignRecord, Recorded
from storage.memory_log import MemoryLog
from tests import made


@pytest.fixture
async def worker(monkeypatch: pytest.MonkeyPatch) -> Participant:
    """The launcher of a run that has just started, which looks at its log often."""
    monkeypatch.setattr(supervisor, "READ_S", 0.01)
    monkeypatch.setattr(supervisor, "LOOK_S", 0.01)
    worker = Participant(MemoryLog("sim"), "launcher", incarnation=Incarnation(since=1))
    await worker.append([made.started()])
    return worker


async def watch(worker: Participant, folder: Path, *events: Event, note: Any = lambda _: None, **run: Any) -> Progress:
    """Return what is seen of a run. events: appended together once the launcher watches. run: settings."""

    class Follower(RecordFollower):
        async def next(self, wait_s: float) -> list[Recorded | ForeignRecord]:
            if events:
                await worker.append(events)
            return await super().next(wait_s)

    archivist = asyncio.get_running_loop().create_future()
    roles: Any = SimpleNamespace(tasks={ARCHIVIST: archivist}, stop=lambda role: archivist.cancel())
    settings = made.settings(rollout={"rollout_batch_size": 1, "num_rollout": 1, "rollout_deadline": 0.1}, run=run)
    run_folder: Any = SimpleNamespace(path=folder, logs=folder, archive=folder / "archive", named="sim")
    view: Any = SimpleNamespace(begin=lambda *_: archivist.set_result(None), tick=lambda *_: None, note=note)
    progress = Progress("sim")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "RecordFollower", Follower)
        await asyncio.wait_for(Supervisor(worker, roles, progress, view, settings, run_folder).watch(), 60)
    return progress


async def test_a_conductor_that_hangs_is_named_by_the_launcher(
    tmp_path: Path, worker: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails a run that does not move on. Who fails one whose conductor hangs is the launcher."""
    monkeypatch.setattr(supervisor, "CONDUCTOR_GRACE_S", 0.1)
    with pytest.raises(TrainerError, match=r"the conductor ended: no progress .* the conductor hangs"):
        await watch(worker, tmp_path)
    (*_, failed) = [recorded.envelope.event async for recorded in worker.log.read()]
    assert isinstance(failed, RunFailed)
    assert (failed.role, failed.waited_for) == ("conductor", "the trainer to publish version 0")


async def test_an_approximate_optimizer_is_told_at_once(tmp_path: Path, worker: Participant) -> None:
    end, notes = made.finished(events=3), list[str]()
    restored = [
        TrainerRestored(version=2 + n, trainer=f"t{n}", checkpoint=0, optimizer=optimizer, retrained=2, differing=1)
        for n, optimizer in enumerate(Fidelity)
    ]
    await watch(worker, tmp_path, *restored, end, note=notes.append)
    (note,) = notes
    assert "version 3" in note
    assert "approximate" in note


async def test_the_progress_is_that_of_the_run_up_to_its_end(tmp_path: Path, worker: Participant) -> None:
    """Though others still have something to say, and it is there at the same look."""
    end = made.finished()
    late = WorkerJoined(worker="late", role="engine", pid=1, node="here", seconds={})
    progress = await watch(worker, tmp_path, end, late)
    assert (progress.state.phase, progress.state.events) == (RunPhase.FINISHED, 2)
    assert progress.figures.workers == []


class _Process:
    """Another process on this machine, that does nothing until it is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


async def test_an_engine_that_was_killed_is_told_in_the_log(tmp_path: Path, worker: Participant) -> None:
    """Report engines of this machine only, and neither one that reported its own end nor one that was never seen."""
    killed, alive, reported, zombie = (_Process() for _ in range(4))
    node = socket.gethostname()
    joined = [
        WorkerJoined(worker="killed", role="engine", pid=killed.pid, node=node),
        WorkerJoined(worker="alive", role="engine", pid=alive.pid, node=node),
        WorkerJoined(worker="told", role="engine", pid=reported.pid, node=node),
        WorkerJoined(worker="zombie", role="engine", pid=zombie.pid, node=node),
        WorkerJoined(worker="far", role="engine", pid=1 << 30, node="elsewhere"),
        WorkerJoined(worker="unseen", role="engine", pid=1 << 30, node=node),
        WorkerJoined(worker="trainer-1", role="trainer", pid=killed.pid, node=node),
    ]

    async def strike() -> None:
        subject = of_type("sim", "worker.lost")
        await asyncio.sleep(0.2)
        await worker.append([WorkerLost(worker="told", role="engine", reason="its own words")])
        await asyncio.sleep(0.2)
        for process in (killed, reported):
            process.kill()
        os.kill(zombie.pid, signal.SIGKILL)  # nobody has asked for its status yet
        async with asyncio.timeout(30):
            while len([record async for record in worker.log.read(1, subject)]) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await worker.append([made.finished()])

    striking = asyncio.create_task(strike())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "CONDUCTOR_GRACE_S", 60.0)
        await watch(worker, tmp_path, *joined)
    await striking
    for process in (alive, zombie):
        process.kill()
    events = [record.envelope.event async for record in worker.log.read(1, of_type("sim", "worker.lost"))]
    lost = {event.worker: event for event in events if isinstance(event, WorkerLost)}
    assert set(lost) == {"told", "killed", "zombie"}
    assert lost["told"].reason == "its own words"
    assert {event.role for event in lost.values()} == {"engine"}
    assert not any(event.requests for event in lost.values()), "nobody knows that a request was why"


async def test_an_engine_of_a_lost_machine_is_told_in_the_log(
    tmp_path: Path, worker: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are not seen from here, but Ray knows the machine."""
    rows = [{"NodeID": f"node{n}", "NodeManagerAddress": f"10.0.0.{n}", "Alive": True} for n in (1, 2)]
    monkeypatch.setattr(machine_watch, "ASK_S", 0.01)
    monkeypatch.setattr(ray, "nodes", lambda: rows)
    joined = [
        WorkerJoined(worker=name, role=role, pid=1 << 30, node="elsewhere", facts=facts)
        for name, role, facts in (
            ("near", "engine", {RAY_NODE: "node1"}),
            ("lost", "engine", {RAY_NODE: "node2"}),
            ("of-an-older-log", "engine", {}),
            ("trainer-1", "trainer", {RAY_NODE: "node2"}),
        )
    ]

    async def strike() -> None:
        await asyncio.sleep(0.2)
        rows[1]["Alive"] = False
        async with asyncio.timeout(30):
            while await worker.log.last(of_type("sim", "worker.lost")) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await worker.append([made.finished()])

    striking = asyncio.create_task(strike())
    monkeypatch.setattr(supervisor, "CONDUCTOR_GRACE_S", 60.0)
    await watch(worker, tmp_path, *joined, ray_address="10.0.0.1:6379")
    await striking
    events = [record.envelope.event async for record in worker.log.read(1, of_type("sim", "worker.lost"))]
    assert events == [WorkerLost(worker="lost", role="engine", reason="its machine 10.0.0.2 is lost")]


async def test_a_ray_that_does_not_answer_does_not_end_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [[{"NodeID": "node2", "NodeManagerAddress": "10.0.0.2", "Alive": False}], None]

    def nodes() -> Any:
        if (answer := answers.pop(0)) is None:
            raise ray.exceptions.RaySystemError("the GCS is away")
        return answer

    monkeypatch.setattr(ray, "nodes", nodes)
    watched = machine_watch.MachineWatch(joined=True)
    assert [dict(await watched.lost(now=True)) for _ in range(2)] == [{"node2": "10.0.0.2"}] * 2
    assert not answers
    assert not await machine_watch.MachineWatch(joined=False).lost(now=True)
