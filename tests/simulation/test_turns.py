"""Trainer and engines use one device in turns: never together, and the run comes to the same end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.devices import DeviceReleased, DeviceTaken, Side
from schemas.event import Event
from storage.memory_log import MemoryLog
from tests.simulation.crash import Crash, Crashed, Fate, Half, Scope
from tests.simulation.test_crash import PLAIN, TWO_ENGINES, events_of, figures

ALONE = replace(PLAIN, in_turns=True)
TOGETHER = replace(TWO_ENGINES, in_turns=True)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process has no thread that continues to write; so nothing leaves the event loop here."""

    async def at_once(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", at_once)


async def run(scene: Any, folder: Path, fate: Fate | None = None) -> MemoryLog:
    folder.mkdir()
    crashed = Crashed(scene, folder, fate or Fate())
    await crashed.run()
    assert not crashed.device.mixed, crashed.device.mixed
    return crashed.log


async def test_the_same_without_turns(tmp_path: Path) -> None:
    log = await run(ALONE, tmp_path / "turns")
    assert figures(log) == figures(await run(PLAIN, tmp_path / "plain"))
    sides = [event.side for event in events_of(log, DeviceTaken)]
    assert sides == [Side.TRAINER, Side.ENGINES] * 4, "a turn to begin, and one per step"
