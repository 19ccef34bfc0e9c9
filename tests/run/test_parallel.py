"""Two trainer ranks through the whole loop, also when an engine is killed in one step and the trainer in the next."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from schemas.batches import BatchSealed
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.steps import StepCommitted
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from tests.run.tiny import MARK, Watching, events_of, left_behind, of, run_with, running
from tests.run.whole import Finished, whole_settings

pytestmark = pytest.mark.real


def parallel(folder: Path, run: str, steps: int, *, chunk_tokens: int = 8, **trainer: Any) -> TrainSettings:
    """The shared run's settings on two trainer ranks."""
    settings = whole_settings(folder, run, steps, chunk_tokens)
    changed = msgspec.structs.replace(settings.trainer, actor_num_gpus_per_node=2, **trainer)
    return msgspec.structs.replace(settings, trainer=changed)


def assert_same_step(log: list[Recorded], other: list[Recorded]) -> None:
    """Step 0 of two runs: losses, gradient norm and log-prob figures; not the seconds."""
    first, second = (of(events, StepCommitted)[0].metrics for events in (log, other))
    measured = [name for name in first if not name.startswith("seconds")]
    expected = {name: first[name] for name in measured}
    assert {name: second[name] for name in measured} == pytest.approx(expected, abs=1e-5, rel=1e-4)


@pytest.mark.soak
@pytest.mark.parametrize("axis", ["tensor_model_parallel_size", "context_parallel_size"])
def test_two_parallel_ranks_take_the_same_step(axis: str, finished: Finished, tmp_path: Path) -> None:
    asyncio.run(run_with(parallel(tmp_path, "cut", 1, **{axis: 2})))
    assert_same_step(finished.events, events_of(tmp_path / "runs" / "cut"))


@pytest.mark.soak
def test_a_context_parallel_run_recovers_from_a_lost_rank(tmp_path: Path) -> None:
    async def kill(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)

    view = Watching()
    asyncio.run(run_with(parallel(tmp_path, "cut", 3, context_parallel_size=2), kill, view=view))
    run = tmp_path / "runs" / "cut"
    events = events_of(run)
    assert "trainer" in [event.role for event in of(events, WorkerLost)]
    assert [event.step for event in of(events, StepCommitted)] == [0, 1, 2]
    assert main(["audit", str(run)]) == 0
    assert main(["retrain", str(run)]) == 0


def test_two_data_parallel_ranks_take_the_same_step_whoever_is_killed(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)

    monkeypatch.setattr(
        "slime_events.app.launch.supervisor.READ_S", 0.02
    )  # a step's rollouts take some tenths of a second

    async def kill(view: Watching) -> None:
        """The engine once step 0 has some of its rollouts and others are under way; the trainer in step 1."""
        await view.until(lambda p: running(p.state) > 8)
        os.kill(view.pid_of("engine"), signal.SIGKILL)
        await view.until(lambda p: p.state.version >= 1)
        os.kill(view.pid_of("trainer"), signal.SIGKILL)

    view = Watching()
    asyncio.run(run_with(parallel(tmp_path, "whole", 2, chunk_tokens=4), kill, view=view))
    assert left_behind(mark) == []
    assert "raylet" not in capfd.readouterr().out
    events = events_of(tmp_path / "runs" / "whole")
    assert_taken_over(finished.events, events, view.notes)
    assert "trainer" in [event.role for event in of(events, WorkerLost)]
    assert [event.step for event in of(events, StepCommitted)] == [0, 1]
    assert_same_step(finished.events, events)


def assert_taken_over(expected: list[Recorded], events: list[Recorded], notes: list[str]) -> None:
    """Check that another engine continued where the lost one was: what step 0 is trained on is the same, bit
    for bit.
    """
    assert of(events, BatchSealed)[0] == of(expected, BatchSealed)[0]
    first, successor = [event.worker for event in of(events, WorkerJoined) if event.role == "engine"]
    chunks, completed = of(events, RolloutProgressed), of(events, RolloutCompleted)
    left = {chunk.sample: chunk.start + chunk.tokens.n for chunk in chunks if chunk.engine == first}
    starts = {event.sample: event.start for event in reversed([*chunks, *completed]) if event.engine == successor}
    taken_over = left.keys() & starts.keys()
    assert taken_over, "some were under way"
    assert {sample: starts[sample] for sample in taken_over} == {sample: left[sample] for sample in taken_over}
    assert [note for note in notes if successor in note and "replaces a lost engine" in note]
