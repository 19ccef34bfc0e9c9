"""The scripted engine keeps the contract and its script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from schemas.errors import DeadlineExceeded, EngineError
from schemas.rollouts import StopReason
from serve_apps.engines.engine import Engine
from tests.engine.contract import EngineContract, collect, request
from tests.scripted_engine import Script, ScriptedEngine


@pytest.fixture
def weights(tmp_path: Path) -> list[Path]:
    return [tmp_path, tmp_path]


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = ScriptedEngine(Script(chunk=8, seconds_per_chunk=0.001))
    await engine.start(1.0)
    yield engine
    await engine.stop()


class TestScriptedEngine(EngineContract):
    def running(self, engine: Any) -> int:
        return int(engine.running)


async def test_it_dies_as_told() -> None:
    engine = ScriptedEngine(Script(chunk=8, die_after_tokens=64))
    await engine.start(1.0)
    results = await asyncio.gather(*[collect(engine, request(n)) for n in range(8)], return_exceptions=True)
    assert all(isinstance(result, EngineError) for result in results)
    assert not await engine.healthy()
    assert engine.tokens_generated >= 64
    assert engine.running == 0


async def test_faults_of_start_update_and_request(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no room"):
        await ScriptedEngine(Script(start_error="no room")).start(1.0)
    with pytest.raises(DeadlineExceeded, match=r"0\.01 s"):
        await ScriptedEngine(Script(seconds_to_start=5)).start(0.01)
    engine = ScriptedEngine(Script(update_error="disk on fire", refused={"r1": "too long"}))
    with pytest.raises(EngineError, match="not been started"):
        await collect(engine, request())
    await engine.start(1.0)
    with pytest.raises(EngineError, match="disk on fire"):
        await engine.update_weights(str(tmp_path), 1)
    with pytest.raises(EngineError, match=r"r1.*too long"):
        await collect(engine, request(1))


async def test_responses_end_where_the_chance_says() -> None:
    engine = ScriptedEngine(Script(eos=999, stop_chance=0.05))
    await engine.start(1.0)
    responses = await asyncio.gather(*[collect(engine, request(n, new=2000)) for n in range(200)])
    assert all(r.finish is StopReason.STOP and r.tokens[-1] == 999 for r in responses)
    assert 15 < sum(len(r.tokens) for r in responses) / 200 < 26
