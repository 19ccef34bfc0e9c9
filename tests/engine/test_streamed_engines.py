"""Two real engines in one group receive a version of many buckets over gloo, and survive the loss of each other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.errors import EngineError
from serve_apps.engines.sglang_engine import SglangEngine
from slime_events.core.config.engine import EngineSettings
from storage.weights.broadcast import STREAM_DEPTH, bucket_bytes, buckets
from storage.weights.manifest import read_manifest
from tests.engine import tiny_model
from tests.engine.broadcasts import Stored
from tests.engine.contract import collect, request

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

SIZES = {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 4, "num_attention_heads": 8}
START_S = 240.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[Stored]:
    """Two versions of other weights than those of the engines, on the same checkpoint."""
    root = tmp_path_factory.mktemp("streamed")
    bases = [tiny_model.write(root / f"m{seed}", seed, **SIZES) for seed in range(3)]
    return [Stored(root / f"s{seed}", bases[0], bases[seed], seed) for seed in (1, 2)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engines(stored: list[Stored]) -> AsyncIterator[list[SglangEngine]]:
    base = Path(stored[0].folder).parents[2] / "m0"
    engines = [SglangEngine(EngineSettings(hf_checkpoint=str(base), device="cpu")) for _ in range(2)]
    try:
        for engine in engines:
            await engine.start(START_S)
        yield engines
    finally:
        for engine in engines:
            await engine.stop()


async def test_both_engines_make_the_tokens_of_the_files(engines: list[SglangEngine], stored: list[Stored]) -> None:
    """The buffers of the first buckets are used again for later ones."""
    version = stored[0]
    parts = list(buckets(read_manifest(Path(version.folder)), bucket_bytes("gloo")))
    assert len(parts) > 3 * STREAM_DEPTH
    async with version.sent(engines=2) as sent:
        received = [engine.receive_weights(sent.group, rank, version.digest) for rank, engine in enumerate(engines, 1)]
        assert await asyncio.gather(*received) == [None, None]
        assert await sent.over() == ""
    first, second = [await collect(engine, request(5, new=100)) for engine in engines]
    await engines[0].update_weights(version.folder, version.version)
    of_files = await collect(engines[0], request(5, new=100))
    assert len(of_files.tokens) == 100
    for response in (first, second):
        assert response.tokens.tolist() == of_files.tokens.tolist()
        assert response.log_probs.tobytes() == of_files.log_probs.tobytes()


async def test_an_engine_that_is_killed_with_bytes_on_the_way_costs_only_itself(
    engines: list[SglangEngine], stored: list[Stored], tmp_path: Path
) -> None:
    """The other engine has part of the new weights then. It loads all of them from the files. Last here."""
    version, go = stored[1], tmp_path / "go"
    async with version.sent(engines=2, held_until=go) as sent:
        tasks = [
            asyncio.create_task(engine.receive_weights(sent.group, rank, version.digest))
            for rank, engine in enumerate(engines, 1)
        ]
        async with asyncio.timeout(60):
            while not go.with_suffix(".held").exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        os.kill(engines[1].scheduler_pids[0], signal.SIGKILL)
        go.touch()
        async with asyncio.timeout(60):
            reason, failure = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(reason, str)
        assert isinstance(failure, EngineError)
        assert await sent.over(), "the sender knows that the group is broken"
    assert engines[0].version < version.version
    await engines[0].update_weights(version.folder, version.version)
    after = await collect(engines[0], request(6, new=50))
    assert {span.version for span in after.spans} == {version.version}
    fresh = SglangEngine(EngineSettings(hf_checkpoint=version.folder, device="cpu"))
    try:
        await fresh.start(START_S)
        expected = await collect(fresh, request(6, new=50))
    finally:
        await fresh.stop()
    assert after.tokens.tolist() == expected.tokens.tolist()
