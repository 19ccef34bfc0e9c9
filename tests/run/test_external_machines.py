"""A real run whose engine is a SGLang server over two machines (here two processes), one of which is killed once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerLost
from slime_events.app.cli.main import main
from storage.nats.ports import free_port
from tests.run.tiny import START_S, Watching, events_of, of, run_with, tiny
from tests.sglang_server import SglangServer

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(1800)]

STEPS = 3


def test_a_server_over_two_machines_makes_the_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_CPU_OMP_THREADS_BIND", "0|0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    settings = tiny(tmp_path, "machines", rollout={"num_rollout": STEPS})
    checkpoint, run = settings.engine.hf_checkpoint, tmp_path / "runs" / "machines"
    words = ("--incremental-streaming-output", "--tp-size", "2", "--nnodes", "2")
    words += ("--dist-init-addr", f"127.0.0.1:{free_port()}")
    first = SglangServer(checkpoint, tmp_path / "first.log", *words, "--node-rank", "0")
    second = SglangServer(checkpoint, tmp_path / "second.log", *words, "--node-rank", "1")
    engine = {"rollout_external_engine_addrs": [first.address], "colocate": False, "sglang": {}, "chunk_tokens": 8}
    settings = msgspec.structs.replace(settings, engine=msgspec.structs.replace(settings.engine, **engine))
    with first, second:
        first.wait()

        async def kill(view: Watching) -> None:
            await view.until(lambda progress: progress.state.version >= 1, deadline_s=3 * START_S)
            second.kill()
            await view.until(lambda _: any("is lost" in note for note in view.notes), deadline_s=3 * START_S)
            first.kill()
            first.start()
            second.start()

        asyncio.run(run_with(settings, kill))
    events = events_of(run)
    assert [event.role for event in of(events, WorkerLost)].count("engine") >= 1
    published = {event.version: event.digest for event in of(events, WeightsPublished)}
    activated = of(events, WeightsActivated)
    assert len({event.engine for event in activated}) >= 2
    assert all(event.digest == published[event.version] for event in activated)
    for command in (["audit", str(run)], ["retrain", str(run)]):
        assert main(command) == 0, capsys.readouterr().out
