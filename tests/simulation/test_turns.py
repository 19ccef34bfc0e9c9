"""Trainer and engines use one device in turns: never together, and the run comes to the same end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.devices import DeviceReleased, DeviceTaken, Side
from schemas.rollouts import RolloutSuspended
from schemas.weights import WeightsActivated
from slime_events.analysis.audit.audit import Audit
from storage.memory_log import MemoryLog
from tests.scripted_engine import Script, ScriptedDevice, ScriptedEngine
from tests.simulation.crash import Crashed, Fate, Scope
from tests.simulation.parts import ScriptedRanks
from tests.simulation.test_crash import (
    ASYNCHRONOUS,
    PARTIAL,
    PLAIN,
    TWO_ENGINES,
    at_every_append,
    events_of,
    figures,
    invariants,
    run_scene,
)

IN_TURNS = replace(PLAIN, in_turns=True)
TWO_IN_TURNS = replace(TWO_ENGINES, in_turns=True)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process has no thread that continues to write; so nothing leaves the event loop here."""

    async def at_once(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


def sides_of(log: MemoryLog) -> list[Side]:
    """The sides that held the device, in the order of their turns. Checks the log without the fold."""
    holders: dict[str, Side] = {}
    sides: list[Side] = []
    for event in (recorded.envelope.event for recorded in log.records):
        if isinstance(event, DeviceTaken):
            holders[event.worker] = event.side
            sides.append(event.side)
            assert len(set(holders.values())) == 1, f"{event.worker} takes the device from {holders}"
        elif isinstance(event, DeviceReleased):
            assert holders.pop(event.worker) is event.side
    return [side for side, _ in itertools.groupby(sides)]


def audited(log: MemoryLog) -> dict[str, Any]:
    """The figures of a run whose audit has no findings about devices."""
    auditor = Audit(log.run, files=False)
    for recorded in log.records:
        auditor.apply(recorded)
    [devices] = [check for check in auditor.finish().checks if check.name == "devices"]
    assert not devices.findings, devices.findings
    return figures(log)


async def test_the_run_without_turns_is_the_same(tmp_path: Path) -> None:
    log = await run_scene(IN_TURNS, tmp_path / "turns", Fate())
    assert figures(log) == figures(await run_scene(PLAIN, tmp_path / "plain", Fate()))
    assert sides_of(log) == [Side.TRAINER, Side.ENGINES] * 4, "a turn to begin, and one per step"
    activated = [event.version for event in events_of(log, WeightsActivated)]
    assert set(activated) == {0, 1, 2, 3}


async def test_engines_hold_the_device_together(tmp_path: Path) -> None:
    log = await run_scene(TWO_IN_TURNS, tmp_path / "turns", Fate())
    assert figures(log) == figures(await run_scene(TWO_ENGINES, tmp_path / "plain", Fate()))
    assert sides_of(log) == [Side.TRAINER, Side.ENGINES] * 3
    assert len({event.worker for event in events_of(log, DeviceTaken)}) == 3


def test_a_scripted_device_sees_two_that_use_it() -> None:
    device, ranks = ScriptedDevice(), ScriptedRanks()
    device.enter(ScriptedEngine(Script()))
    device.enter(ScriptedEngine(Script()))
    assert not device.mixed
    device.enter(ranks)
    assert device.mixed == ["ScriptedEngine and ScriptedRanks"]


async def test_every_process_dies_at_each_append(tmp_path: Path) -> None:
    assert await at_every_append(IN_TURNS, tmp_path, audited) > 40


@pytest.mark.parametrize("role", ["trainer", "engine0"])
async def test_one_process_dies_at_each_of_its_appends(tmp_path: Path, role: str) -> None:
    assert await at_every_append(IN_TURNS, tmp_path, audited, scope=Scope.ROLE, role=role) > 10


@pytest.mark.parametrize("role", ["trainer", "engine0", "engine1"])
async def test_one_of_two_engines_dies_at_each_of_its_appends(tmp_path: Path, role: str) -> None:
    assert await at_every_append(TWO_IN_TURNS, tmp_path, audited, scope=Scope.ROLE, role=role) > 7


async def test_rollouts_that_are_suspended_by_a_batch(tmp_path: Path) -> None:
    suspended: list[Any] = []

    def judge(log: MemoryLog) -> dict[str, Any]:
        suspended.extend(events_of(log, RolloutSuspended))
        return invariants(log)

    script = replace(PARTIAL.scripts[1], eos=0, stop_chance=0.2)  # either engine may take all: lengths must differ
    scene = replace(PARTIAL, in_turns=True, scripts=(script, script))
    assert await at_every_append(scene, tmp_path, judge, scope=Scope.ROLE, role="engine1") > 5
    assert suspended


async def test_rollouts_in_flight_go_on_after_the_trainers_turn(tmp_path: Path) -> None:
    scene = replace(ASYNCHRONOUS, in_turns=True, scripts=(Script(chunk=1, seconds_per_chunk=0.002),))
    crashed = Crashed(scene, tmp_path)
    await crashed.run()
    assert not crashed.device.mixed
    assert invariants(crashed.log)["version"] == 3
    assert sides_of(crashed.log).count(Side.TRAINER) >= 2
