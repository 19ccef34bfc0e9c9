"""One generation by itself: its chunks, and what is in the log when it is suspended or aborted."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import AsyncMock

import pytest

from schemas.arrays import unpack
from schemas.errors import EngineError
from schemas.rollouts import RolloutProgressed, StopReason
from serve_apps.engines.engine import GenerateRequest
from serve_apps.rollouts import rollout
from serve_apps.rollouts.rollout import ChunkRule, Rollout, RolloutContext, stream
from slime_events.core.tokens.trajectory import Trajectory
from tests import made
from tests.scripted_engine import Script, ScriptedEngine

REQUEST = made.requested(prompt=[1, 2], max_new_tokens=10)


class Streamed:
    """A generation of ten tokens, two with each delta and a second apart. suspends, aborts: after how many deltas."""

    def __init__(self, rule: ChunkRule, *, suspends: int = 99, aborts: int = 99) -> None:
        self.rollout = Rollout(REQUEST, Trajectory(REQUEST.sample, REQUEST.prompt, position=3), "e")
        self.engine = ScriptedEngine(Script(chunk=2))
        self.chunks: list[RolloutProgressed] = []
        self.seconds = 0.0
        self._rule, self._suspends, self._aborts, self._deltas = rule, suspends, aborts, 0

    async def run(self) -> StopReason | None:
        await self.engine.start(1.0)
        prompt = unpack(REQUEST.prompt)
        request = GenerateRequest("rid", prompt, REQUEST.sampling, 1, self.rollout.trajectory.tokens)
        context = RolloutContext(self.engine.generate, self._rule, "rid", AsyncMock(), self._is_suspended, AsyncMock())
        delta = await stream(context, request, self.rollout, self._append)
        return delta.finish if delta else None

    def _is_suspended(self) -> bool:
        self._deltas += 1
        self.seconds += 1.0
        if self._deltas == self._aborts:
            self.engine._aborted.add("rid")
        return self._deltas >= self._suspends

    async def _append(self, chunk: RolloutProgressed) -> int:
        self.chunks.append(chunk)
        return 3 + len(self.chunks)

    @property
    def in_the_log(self) -> list[int]:
        """The tokens of all chunks, which lie end to end."""
        tokens: list[int] = []
        for chunk in self.chunks:
            assert chunk.start == len(tokens)
            tokens += unpack(chunk.tokens).tolist()
        return tokens

    @property
    def generated(self) -> list[int]:
        return [self.engine.token(1, 2 + position) for position in range(self.rollout.length)]


SELDOM, OFTEN = ChunkRule(tokens=100, seconds=1e9), ChunkRule(tokens=4, seconds=1e9)


@pytest.mark.parametrize(("rule", "chunks"), [(SELDOM, 1), (OFTEN, 2)])
async def test_a_rollout_suspended_between_chunks_has_all_its_tokens_in_the_log(rule: ChunkRule, chunks: int) -> None:
    streamed = Streamed(rule, suspends=3)
    assert await streamed.run() is None
    assert streamed.in_the_log == streamed.generated
    assert (len(streamed.generated), len(streamed.chunks)) == (6, chunks)
    assert streamed.rollout.suspended().length == 6
    assert streamed.rollout.trajectory.position == 3 + chunks


async def test_an_aborted_rollout_keeps_its_tokens_too() -> None:
    streamed = Streamed(SELDOM, aborts=2)
    with pytest.raises(EngineError):
        await streamed.run()
    assert streamed.in_the_log == streamed.generated
    assert len(streamed.generated) == 4


async def test_an_end_goes_before_a_suspension() -> None:
    """The last delta is there: nothing is left to be made later."""
    streamed = Streamed(SELDOM, suspends=5)
    assert await streamed.run() is StopReason.LENGTH
    assert streamed.chunks == []
    assert streamed.rollout.new_length == 10


@pytest.mark.parametrize(("seconds", "sizes"), [(1.0, [2, 2, 2, 2]), (2.0, [4, 4]), (2.5, [6]), (9.0, [])])
async def test_a_chunk_is_appended_so_many_seconds_after_the_last(
    monkeypatch: pytest.MonkeyPatch, seconds: float, sizes: list[int]
) -> None:
    streamed = Streamed(ChunkRule(tokens=100, seconds=seconds))
    streamed.rollout.appended_at = 0.0
    monkeypatch.setattr(rollout, "time", SimpleNamespace(perf_counter=lambda: streamed.seconds))
    assert await streamed.run() is StopReason.LENGTH
    assert [chunk.tokens.n for chunk in streamed.chunks] == sizes


async def test_whoever_reads_along_gets_the_first_token_at_once() -> None:
    """And whole chunks from then on."""
    streamed = Streamed(ChunkRule(tokens=4, seconds=1e9, first_at_once=True))
    await streamed.run()
    assert [chunk.tokens.n for chunk in streamed.chunks] == [2, 4]
