"""The conductor fails a run that does not move on. Who fails one whose conductor hangs is the launcher."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.errors import TrainerError
from schemas.runs import RunFailed, RunStarted
from slime_events.config.rollout import RolloutSettings
from slime_events.config.settings import TrainSettings
from slime_events.incarnation import Incarnation
from slime_events.launch import supervisor
from slime_events.launch.roles import ARCHIVIST
from slime_events.launch.supervisor import Supervisor
from slime_events.progress import Progress
from slime_events.worker import Worker
from storage.memory_log import MemoryLog


def roles() -> Any:
    """Processes that are there and do nothing."""
    tasks = {ARCHIVIST: asyncio.get_running_loop().create_future()}
    return SimpleNamespace(tasks=tasks, stop=lambda role: tasks[role].cancel())


async def check_server() -> None:
    """It is there."""


async def test_a_conductor_that_hangs_is_named_by_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "CONDUCTOR_GRACE_S", 0.1)
    monkeypatch.setattr(supervisor, "LOOK_S", 0.01)
    log = MemoryLog("sim")
    worker = Worker(log, "launcher", incarnation=Incarnation(since=1))
    await worker.say([RunStarted(settings={}, code_version="")])
    settings = TrainSettings(rollout=RolloutSettings(rollout_batch_size=1, num_rollout=1, rollout_deadline=0.1))
    folder = SimpleNamespace(path=tmp_path, logs=tmp_path)
    view = SimpleNamespace(tick=lambda *_: None, note=lambda _: None)
    watching = Supervisor(worker, roles(), Progress("sim"), view, settings, folder, check_server)
    with pytest.raises(TrainerError, match=r"the conductor ended: no progress .* it hangs"):
        await asyncio.wait_for(watching.watch(), 10)
    failed = log.records[-1].envelope.event
    assert isinstance(failed, RunFailed)
    assert (failed.role, failed.waited_for) == ("conductor", "the trainer to publish version 0")
