"""Runs of the real conductor, workers, grader and trainer, with an engine that takes its time by sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from schemas.rollouts import RolloutProgressed, StopReason
from serve_apps.engines.engine import Delta, GenerateRequest, Tokens
from serve_apps.rollouts.rollout import ChunkRule
from slime_events.analysis.what_if.chunks import ChunkTimes
from slime_events.core.config.engine import message_tokens
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.plan import make_plan
from slime_events.model import Run, fold_run
from storage.log import Append
from tests import made
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.parts import Line
from tests.simulation.simulation import Simulation


@dataclass(frozen=True)
class Pace:
    """What takes how long [s]."""

    token: float = 0.02
    running: float = 0.001
    chunk: float = 0.0
    step: float = 0.5
    load: float = 0.05


@dataclass(eq=False)
class _Stream:
    request: GenerateRequest
    response: Tokens
    deltas: asyncio.Queue[Delta] = field(default_factory=asyncio.Queue)
    new: list[Delta] = field(default_factory=list)


class PacedEngine(ScriptedEngine):
    """Computes a token of all its rollouts at a time, and sends messages as SGLang does: see `message_tokens`."""

    def __init__(self, script: Script, pace: Pace, chunk: int) -> None:
        super().__init__(script)
        self._pace, self._message = pace, message_tokens(chunk)
        self._live: dict[str, _Stream] = {}
        self._added = asyncio.Event()
        self._decoding: asyncio.Task[None] | None = None
        self.appended = 0

    async def start(self, deadline_s: float) -> None:
        await super().start(deadline_s)
        self._decoding = asyncio.create_task(self._decode())

    async def stop(self) -> None:
        await super().stop()
        if self._decoding is not None:
            self._decoding.cancel()
            await asyncio.gather(self._decoding, return_exceptions=True)

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        stream = _Stream(request, request.resume.astype(np.int32))
        self._live[request.rid] = stream
        self._added.set()
        try:
            finish = None
            while finish is None:
                delta = await stream.deltas.get()
                finish = delta.finish
                yield delta
        finally:
            self._live.pop(request.rid, None)

    async def abort(self, rid: str) -> None:
        if (stream := self._live.pop(rid, None)) is not None:
            none = np.empty(0, np.int32), np.empty(0, np.float32)
            stream.deltas.put_nowait(Delta(*none, (), StopReason.ABORT, self.text(stream.response)))

    async def _decode(self) -> None:
        """Steps are due at times of their own, so that a busy machine does not make all of them longer."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self._live:
                self._added.clear()
                await self._added.wait()
                due = max(due, loop.time())
            streams = list(self._live.items())
            due += self._pace.token + self._pace.running * len(streams) + self._pace.chunk * self.appended
            self.appended = 0
            await asyncio.sleep(due - loop.time())
            if not self._awake.is_set():
                await self._awake.wait()
                due = loop.time()
            for rid, stream in streams:
                if self._live.get(rid) is stream:
                    self._token(rid, stream)

    def _token(self, rid: str, stream: _Stream) -> None:
        delta = self._next(stream.request, stream.response)
        is_first = len(stream.response) == len(stream.request.resume)
        stream.response = np.concatenate([stream.response, delta.tokens])
        stream.new.append(delta)
        if is_first or delta.finish is not None or len(stream.new) >= self._message:
            stream.deltas.put_nowait(_joined(stream.new))
            stream.new = []
        if delta.finish is not None:
            del self._live[rid]


def _joined(deltas: Sequence[Delta]) -> Delta:
    return replace(
        deltas[-1],
        tokens=np.concatenate([delta.tokens for delta in deltas]),
        log_probs=np.concatenate([delta.log_probs for delta in deltas]),
        spans=tuple(span for delta in deltas for span in delta.spans),
    )


def paced(**changes: Any) -> TrainSettings:
    """Return settings of 8 steps of 4 groups of 4 samples of up to 80 tokens. changes: of the rollout, and `chunk`."""
    chunk = changes.pop("chunk", 64)
    rollout = {"num_rollout": 8, "rollout_batch_size": 4, "n_samples_per_prompt": 4, "rollout_max_response_len": 80}
    engine = {"chunk_tokens": chunk, "chunk_seconds": 30.0, "rollout_num_gpus": changes.pop("engines", 1)}
    return made.settings(rollout=rollout | changes, engine=engine, data={"prompt_data": "f"})


async def paced_run(folder: Path, settings: TrainSettings, pace: Pace) -> tuple[Run, ChunkTimes]:
    """Return the records of a run, and its chunks."""
    folder.mkdir(parents=True)
    plan = make_plan(settings.rollout, settings.evaluation, settings.trainer)
    script = Script(eos=0, stop_chance=0.03, chunk=1, seconds_to_update=pace.load)
    prompts = [f"prompt {number}" for number in range(200)]
    async with Simulation(folder, plan, train_s=pace.step, prompts=prompts) as simulation:
        rule = ChunkRule(settings.engine.chunk, settings.engine.chunk_s)
        for _ in range(settings.engine.replicas):
            engine = PacedEngine(script, pace, settings.engine.chunk)
            _count_chunks(simulation.start_engine(engine, rule=rule), engine)
        await simulation.finish()
    chunks = ChunkTimes(settings.engine.chunk)
    for recorded in simulation.log.records:
        chunks.apply(recorded)
    return fold_run("sim", simulation.log.records), chunks


def _count_chunks(line: Line, engine: PacedEngine) -> None:
    """Let each chunk that an engine's worker appends take the engine's time."""
    append = line.append

    async def counted(appends: Sequence[Append]) -> list[int]:
        engine.appended += sum(isinstance(each.envelope.event, RolloutProgressed) for each in appends)
        return await append(appends)

    line.append = counted  # type: ignore[method-assign]
