"""More than one trainer rank through the whole loop, also when the trainer dies."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.steps import StepCommitted
from schemas.workers import WorkerLost
from slime_events.config.settings import TrainSettings
from tests.run.tiny import MARK, Watching, events_of, left_behind, of, run_with
from tests.run.whole import Finished, whole_settings

pytestmark = pytest.mark.real


def parallel(folder: Path, run: str, steps: int, **trainer: Any) -> TrainSettings:
    """The shared run's settings on two trainer ranks."""
    settings = whole_settings(folder, run, steps, chunk_tokens=8)
    changed = msgspec.structs.replace(settings.trainer, actor_num_gpus_per_node=2, **trainer)
    return msgspec.structs.replace(settings, trainer=changed)


def first_step(folder: Path, run: str) -> dict[str, float]:
    """The metrics of step 0."""
    metrics: dict[str, float] = of(events_of(folder / "runs" / run), StepCommitted)[0].metrics
    return metrics


def assert_same_step(one: dict[str, float], other: dict[str, float]) -> None:
    """Losses, gradient norm and log-prob figures; not the seconds."""
    measured = [name for name in one if not name.startswith("seconds")]
    assert {name: other[name] for name in measured} == pytest.approx({n: one[n] for n in measured}, abs=1e-5, rel=1e-4)


@pytest.mark.soak
def test_two_tensor_parallel_ranks_take_the_same_step(finished: Finished, tmp_path: Path) -> None:
    asyncio.run(run_with(parallel(tmp_path, "tp", 1, tensor_model_parallel_size=2)))
    assert_same_step(first_step(finished.folder.parents[1], "whole"), first_step(tmp_path, "tp"))


def test_two_data_parallel_ranks_take_the_same_step_and_a_lost_trainer_is_started_again_with_all_its_ranks(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)

    async def kill(view: Watching) -> None:
        progress = await view.until(lambda p: p.state.version == 1)
        (trainer,) = [worker for worker in progress.workers if worker.role == "trainer"]
        os.kill(trainer.pid, signal.SIGKILL)

    asyncio.run(run_with(parallel(tmp_path, "dp", 2), kill))
    assert left_behind(mark) == []
    events = events_of(tmp_path / "runs" / "dp")
    assert "trainer" in [one.role for one in of(events, WorkerLost)]
    assert [one.step for one in of(events, StepCommitted)] == [0, 1]
    assert_same_step(first_step(finished.folder.parents[1], "whole"), first_step(tmp_path, "dp"))
