"""Roles that are lost in the middle of a run: another takes the place, and the training is the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from schemas.errors import TrainerError
from schemas.runs import RunFailed
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.launch.supervisor import Restarts
from slime_events.core.training.train_batch import StepResult, TrainBatch
from tests.harness.chaos.settings import OWN_REWARD
from tests.run.cheap import CountingRanks, LocalCluster, Parts, cheap_parts, lose
from tests.run.tiny import Watching, events_of, of, run_with, tiny

STEPS = 3


def undisturbed(folder: Path) -> str:
    with cheap_parts(Parts()):
        settings = tiny(folder, "undisturbed", rollout={"num_rollout": STEPS})
        return str(asyncio.run(run_with(settings))["weights_digest"])


@pytest.mark.parametrize("role", ["conductor", "inbox", "grader", "archivist", "trainer"])
def test_a_lost_role_is_started_again(tmp_path: Path, clusters: list[LocalCluster], role: str) -> None:
    async def strike(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1 and p.in_flight > 0)
        lose(clusters[-1], role)

    digest, view = undisturbed(tmp_path), Watching()
    with cheap_parts(Parts()):
        # Engines grade by `exact` themselves: a grader that is to be missed needs a rule of a user's.
        reward = {"rm_type": None, "custom_rm_path": OWN_REWARD} if role == "grader" else {}
        settings = tiny(tmp_path, "struck", rollout={"num_rollout": STEPS}, reward=reward)
        summary = asyncio.run(run_with(settings, strike, view=view))
    assert summary["weights_digest"] == digest
    assert [note for note in view.notes if f"the {role} is lost" in note]
    events = events_of(tmp_path / "runs" / "struck")
    (lost,) = of(events, WorkerLost)
    first, second = (event for event in of(events, WorkerJoined) if event.role == role)
    assert (lost.worker, lost.role) == (first.worker, role) != (second.worker, role)


class Crashing(CountingRanks):
    """Takes its process with it."""

    async def train(self, batch: TrainBatch) -> StepResult:
        raise RayActorError


def test_a_role_that_is_lost_again_and_again_fails_the_run(tmp_path: Path) -> None:
    settings = tiny(tmp_path, "doomed", run={"runs_dir": str(tmp_path / "runs"), "max_deaths": 3})
    parts = Parts(ranks=Crashing())
    with cheap_parts(parts), pytest.raises(TrainerError, match="its process died 3 times without progress of the run"):
        asyncio.run(run_with(settings))
    folder = tmp_path / "runs" / "doomed"
    (failed,) = of(events_of(folder), RunFailed)
    assert failed.role == "trainer"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["phase"] == "failed"
    assert "died 3 times" in summary["failure"]


def test_deaths_count_while_the_run_does_not_move_on() -> None:
    restarts = Restarts(most=3)
    assert [restarts.allows("grader", moved) for moved in (7, 7, 9, 9, 9)] == [True, True, True, True, False]
    assert restarts.allows("trainer", 9)


def test_a_death_on_a_machine_that_is_just_lost_does_not_count_twice() -> None:
    """The connection of a rank ends before Ray knows of its machine, where the next rank then is too."""
    restarts = Restarts(most=2)
    assert restarts.allows("trainer", 7, ())
    assert restarts.allows("trainer", 7, {"node2"})
    assert not restarts.allows("trainer", 7, {"node2"})
    early = Restarts(most=2)
    assert early.allows("trainer", 7, {"node2"})
    assert not early.allows("trainer", 7, {"node2"})


def test_a_run_that_fails_while_its_engines_are_deployed_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray then ends the call that deploys them with SystemExit(0)."""
    ended, begun, stop = threading.Event(), threading.Event(), LocalCluster.stop

    def deploy(self: LocalCluster, apps: Sequence[Any], run: str) -> None:
        for app in apps:
            app.close()
        begun.set()
        ended.wait(60.0)
        raise SystemExit(0)

    def end(self: LocalCluster) -> None:
        ended.set()
        stop(self)

    async def fails(*_: object) -> None:
        assert await asyncio.to_thread(begun.wait, 60.0)
        raise TrainerError("rank 0 lost its device")

    monkeypatch.setattr(LocalCluster, "serve", deploy)
    monkeypatch.setattr(LocalCluster, "stop", end)
    monkeypatch.setattr(CountingRanks, "reset", fails)
    with cheap_parts(Parts()), pytest.raises(TrainerError, match="rank 0 lost its device"):
        asyncio.run(run_with(tiny(tmp_path, "doomed")))
