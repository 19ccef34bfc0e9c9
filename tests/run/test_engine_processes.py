"""Engines whose process was killed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from schemas.devices import DeviceTaken, Side
from schemas.workers import WorkerJoined
from slime_events.app.launch import engine_processes
from slime_events.app.launch.engine_processes import EngineProcesses

HERE = socket.gethostname()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process in place of an engine."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield child
        child.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _lost(processes: EngineProcesses) -> list[str]:
    return [event.worker for event in processes.gone({})]


def test_a_killed_engine_is_lost_once(process: subprocess.Popen[bytes]) -> None:
    processes = EngineProcesses()
    processes.apply(WorkerJoined(worker="e", role="engine", pid=process.pid, node=HERE))
    processes.apply(WorkerJoined(worker="far", role="engine", pid=process.pid, node="another machine"))
    assert not _lost(processes)
    _end(process)
    assert _lost(processes) == ["e"]
    assert not _lost(processes)


def test_what_an_engine_that_takes_turns_has_started_ends_before_it_is_lost(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    processes, now = EngineProcesses(), [0.0]
    monkeypatch.setattr(engine_processes.time, "monotonic", lambda: now[0])
    processes.apply(DeviceTaken(worker="e", side=Side.ENGINES, number=0, pid=process.pid, node=HERE))
    processes.apply(WorkerJoined(worker="e", role="engine", pid=process.pid, node=HERE))
    _end(process)
    assert not _lost(processes)
    now[0] += engine_processes.END_S - 0.1
    assert not _lost(processes)
    now[0] += 0.2
    assert _lost(processes) == ["e"]


@pytest.mark.parametrize("sees", [True, False])
def test_an_engine_that_is_killed_before_it_joins(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, *, sees: bool
) -> None:
    """It is lost if processes of this machine are visible here at all."""
    monkeypatch.setattr(engine_processes, "END_S", 0.0)
    processes = EngineProcesses()
    if sees:
        processes.apply(WorkerJoined(worker="conductor", role="conductor", pid=os.getpid(), node=HERE))
    _end(process)
    processes.apply(DeviceTaken(worker="e", side=Side.ENGINES, number=0, pid=process.pid, node=HERE))
    processes.apply(DeviceTaken(worker="t", side=Side.TRAINER, number=0, pid=process.pid, node=HERE))
    assert _lost(processes) == ["e"] * sees
