"""A real run whose engine is a real SGLang server that somebody else started, and that is killed once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, Sampling
from schemas.weights import WeightsActivated, WeightsPublished
from schemas.workers import WorkerLost
from serve_apps.engines.engine import GenerateRequest
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.app.cli.main import main
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from storage.weights.store import WeightStore
from tests.run.tiny import START_S, Watching, events_of, of, run_with, tiny
from tests.sglang_server import SglangServer

pytestmark = [pytest.mark.real, pytest.mark.soak, pytest.mark.timeout(900)]

STEPS = 4
COMPARED = 24
"""Rollouts whose log-probs an engine of ours repeats."""


def _with(settings: TrainSettings, address: str) -> TrainSettings:
    trainer = msgspec.structs.replace(settings.trainer, keep_weights=0)
    engine = msgspec.structs.replace(
        settings.engine, rollout_external_engine_addrs=[address], colocate=False, sglang={}, chunk_tokens=8
    )
    return msgspec.structs.replace(settings, trainer=trainer, engine=engine)


def test_a_server_that_runs_already_makes_the_rollouts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tiny(tmp_path, "external", rollout={"num_rollout": STEPS})
    checkpoint, run = settings.engine.hf_checkpoint, tmp_path / "runs" / "external"
    with SglangServer(checkpoint, tmp_path / "server.log", "--incremental-streaming-output") as server:
        server.wait()

        async def kill(view: Watching) -> None:
            await view.until(lambda progress: progress.state.version >= 1)
            server.kill()
            server.start()

        asyncio.run(run_with(_with(settings, server.address), kill))
    events = events_of(run)
    asyncio.run(_compare(settings, events, run))
    assert [event.role for event in of(events, WorkerLost)].count("engine") >= 1
    published = {event.version: event for event in of(events, WeightsPublished)}
    activated = of(events, WeightsActivated)
    assert len({event.engine for event in activated}) >= 2
    assert all(event.digest == published[event.version].digest for event in activated)
    assert set(range(STEPS)) <= {event.version for event in activated}
    for words in (["audit", str(run)], ["retrain", str(run)]):
        assert main(words) == 0, capsys.readouterr().out


async def _compare(settings: TrainSettings, events: list[Recorded], run: Path) -> None:
    """Score recorded responses with an engine of ours, each span by its version."""
    store = WeightStore(str(run / "weights"))
    prompts = {event.group: event for event in of(events, PromptSubmitted)}
    completed = [event for event in of(events, RolloutCompleted) if event.tokens is not None and not event.start]
    completed = sorted(completed, key=lambda event: len(event.spans), reverse=True)[:COMPARED]
    ours = SglangEngine(settings.engine)
    await ours.start(START_S)
    compared = set[int]()
    try:
        for version in sorted({span.version for event in completed for span in event.spans}):
            await ours.update_weights(str(store.folder(version)), version)
            for event in completed:
                ids, tokens = unpack(prompts[event.group].tokens), unpack(event.tokens)
                for span in (span for span in event.spans if span.version == version):
                    request = GenerateRequest("x", ids, Sampling(max_new_tokens=999), 0, resume=tokens[: span.start])
                    scored = await ours.score(request, tokens[span.start : span.end])
                    expected = unpack(event.log_probs)[span.start : span.end]
                    np.testing.assert_allclose(scored, expected, atol=1e-4, rtol=0)
                    compared.add(version)
        assert len(compared) >= 2
    finally:
        await ours.stop()
