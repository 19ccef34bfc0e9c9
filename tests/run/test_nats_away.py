"""Kill NATS in the middle of a run: all wait with a message, and continue; nothing is lost or there twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.steps import StepCommitted
from slime_events.core.config.settings import TrainSettings
from slime_events.model.verify import verify
from storage.jetstream.log import JetStreamLog
from storage.log import Recorded
from storage.nats.server import NatsServer
from tests.run.cheap import LocalCluster, Parts, cheap_parts
from tests.run.tiny import GROUPS, SAMPLES, Watching, events_of, of, run_with, tiny
from tests.storage.nats_cluster import NatsCluster

STEPS = 4


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last weights of the run that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with cheap_parts(Parts()):
        summary = asyncio.run(run_with(settings_of(folder)))
    assert summary["steps"] == STEPS
    return str(summary["weights_digest"])


def settings_of(folder: Path, **run: Any) -> TrainSettings:
    return tiny(folder, "away", rollout={"num_rollout": STEPS}, run={"runs_dir": str(folder)} | run)


def check(events: list[Recorded]) -> None:
    """Every sample was made, graded and trained once."""
    for kind in (RolloutCompleted, RewardAssigned):
        counted = Counter(event.sample for event in of(events, kind))
        assert len(counted) == STEPS * GROUPS * SAMPLES
        assert set(counted.values()) == {1}
    assert len(of(events, PromptSubmitted)) == STEPS * GROUPS
    assert [event.step for event in of(events, StepCommitted)] == list(range(STEPS))


@pytest.mark.parametrize("away_s", [3.0, pytest.param(60.0, marks=pytest.mark.soak)])
async def test_a_server_of_somebody_else_is_waited_for(tmp_path: Path, digest: str, away_s: float) -> None:
    async def out_of_order(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1 and p.in_flight > 0)
        os.kill(servers[0].pid, signal.SIGKILL)
        await asyncio.sleep(away_s)
        servers.append(await NatsServer.start(tmp_path / "nats", port=port))

    servers = [await NatsServer.start(tmp_path / "nats")]
    port = servers[0].port
    view = Watching()
    try:
        with cheap_parts(Parts()):
            summary = await run_with(settings_of(tmp_path, nats_url=servers[0].url), out_of_order, view=view)
        assert summary["weights_digest"] == digest
        assert any("waiting for NATS" in note and " since " in note for note in view.notes), view.notes
        assert any("is back after" in note for note in view.notes), view.notes
        log = await JetStreamLog.open(servers[-1].url, "away", create=False)
        check([recorded async for recorded in log.read()])
        await verify(log)
        await log.close()
    finally:
        await servers[-1].stop()


def test_a_server_of_ours_is_started_again(tmp_path: Path, digest: str) -> None:
    async def kill(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1 and p.in_flight > 0)
        server = NatsServer.attach(tmp_path / "away" / "nats")
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)

    view = Watching()
    with cheap_parts(Parts()):
        summary = asyncio.run(run_with(settings_of(tmp_path), kill, view=view))
    assert summary["weights_digest"] == digest
    assert [note for note in view.notes if "has died: starting it again" in note]
    check(events_of(tmp_path / "away"))
    assert NatsServer.attach(tmp_path / "away" / "nats") is None


async def test_a_cluster_that_loses_its_leader_goes_on(tmp_path: Path, digest: str) -> None:
    async def kill(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1 and p.in_flight > 0)
        await cluster.kill(await cluster.leader("away"))

    async with await NatsCluster.start(tmp_path / "nats") as cluster:
        with cheap_parts(Parts()):
            settings = settings_of(tmp_path, nats_url=cluster.url, nats_replicas=3)
            summary = await run_with(settings, kill, view=Watching())
        assert summary["weights_digest"] == digest
        log = await JetStreamLog.open(cluster.url, "away", create=False)
        check([recorded async for recorded in log.read()])
        await verify(log)
        await log.close()


def test_a_server_of_ours_that_dies_before_anything_runs_is_started_again(
    tmp_path: Path, digest: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the start wait for the log for long, so that nobody else looks after its server."""

    def kill(_: LocalCluster) -> None:
        server = NatsServer.attach(tmp_path / "away" / "nats")
        assert server is not None
        os.kill(server.pid, signal.SIGKILL)

    monkeypatch.setattr(LocalCluster, "start", kill)
    view = Watching()
    with cheap_parts(Parts()):
        summary = asyncio.run(run_with(settings_of(tmp_path), view=view))
    assert summary["weights_digest"] == digest
    assert [note for note in view.notes if "has died: starting it again" in note]
