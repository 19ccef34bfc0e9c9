"""Measure the time that the gateway adds to an engine's first token, at the first and at a late turn of a session.

The client streams chat completions from a gateway in its own process; an engine in another process generates them. The
engine's own time, from the call of `generate` to its first token, is measured in the same turn. The rest of the
client's time is the time that the gateway and the log add. All clocks are those of one machine.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.agent_engine import ANSWER, READY_S, RUN, settings_of
from benchmarks.agent_floor import floor_ms, running
from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens
from schemas.doc import doc
from schemas.errors import StorageError
from schemas.ids import sample_id, turn_group_id
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardFailed, RewardFailureKind
from schemas.rollouts import Maker, RolloutCompleted, RolloutProgressed, RolloutRequested, Sampling
from schemas.runs import RunStarted
from schemas.subjects import of_type
from schemas.turns import TurnBegun
from schemas.weights import WeightsPublished
from serve_apps.http.gateway.sources import Sources
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from storage.jetstream.log import JetStreamLog
from storage.log import append_all, once
from storage.nats.accounts import Access
from storage.nats.ports import free_port
from storage.open_log import own_server
from storage.weights.files import open_checkpoint
from storage.weights.store import WeightStore

GROUP = "g0"
LATE = 128
NEAR = 16
"""Number of turns, up to the late turn, whose median is taken."""
RESULT = "The tool says that the answer is 42. " * 8
APPENDS = 50
ENGINES = ("scripted", "SGLang")
_KIND = RewardFailureKind.TIMEOUT


class Times(NamedTuple):
    """Moments of one turn, in seconds of one clock."""

    sent: Annotated[float, doc("The client sent its request")]
    began: Annotated[float, doc("Just before the append of turn.begun")]
    called: Annotated[float, doc("Call of the engine's `generate`")]
    generated: Annotated[float, doc("The engine's first token")]
    appending: Annotated[float, doc("Just before the append of the first chunk")]
    received: Annotated[float, doc("The client received the first text")]

    @property
    def engine_ms(self) -> float:
        """The engine's own time to first token."""
        return (self.generated - self.called) * 1e3

    @property
    def added_ms(self) -> float:
        """Time that the client waited in addition."""
        return (self.received - self.sent) * 1e3 - self.engine_ms


class Timings(NamedTuple):
    """Times of a run."""

    turns: Annotated[dict[int, list[Times]], doc("Turns by number")]
    one_ms: Annotated[float, doc("An append of one event, on the same log")]
    two_ms: Annotated[float, doc("An append of two events, on the same log")]
    floor_ms: Annotated[float, doc("Time added by uvicorn and nats-py alone (`agent_floor`)")]


class Request(NamedTuple):
    """A turn as its client saw it."""

    sample: str
    number: int
    sent: float
    received: Annotated[float | None, doc("Time of the first text; None if there was no text")]


class Agent:
    """A connection to a gateway, for the chat of one session at a time."""

    def __init__(self, gateway: str, token: str) -> None:
        self._host, _, self._port = gateway.rpartition(":")
        self._token = token
        self._reader: Any = None
        self._writer: Any = None

    async def open(self) -> dict[str, Any]:
        """Open a session."""
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        lines = await self._post(f"/v1/runs/{RUN}/sessions", self._token, b'{"wait_s": 20}')
        return dict(json.loads(b"".join([line async for _, line in lines])))

    async def ask(self, key: str, chat: Sequence[Any]) -> tuple[float, float | None, str]:
        """Return the time of the request, the time of the first text (None without text), and the text."""
        body = json.dumps({"model": "m", "messages": chat, "max_tokens": ANSWER, "stream": True}).encode()
        sent, received, text = time.time_ns(), None, ""
        async for at, line in await self._post("/v1/chat/completions", key, body):
            if line.startswith(b"data: {"):
                part = json.loads(line[6:])
                if "error" in part:
                    raise StorageError(f"the gateway replied: {part}")
                text += next((choice["delta"].get("content") or "" for choice in part["choices"]), "")
                received = at if text and received is None else received
        return sent / 1e9, received and received / 1e9, text

    async def _post(self, path: str, key: str, data: bytes) -> AsyncIterator[tuple[int, bytes]]:
        """Return the lines of the reply's body with their times. Raises StorageError."""
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {key}\r\n"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = await self._reader.readline()
        fields = [line async for line in self._until_blank()]
        if b" 20" not in status:
            raise StorageError(f"the gateway replied {status!r}: {await self._reader.read(2000)!r}")
        lengths = [int(line.partition(b":")[2]) for line in fields if line.lower().startswith(b"content-length")]
        return self._lines(lengths[0] if lengths else None)

    async def _until_blank(self) -> AsyncIterator[bytes]:
        while (line := (await self._reader.readline()).strip()) != b"":
            yield line

    async def _lines(self, length: int | None) -> AsyncIterator[tuple[int, bytes]]:
        if length is not None:
            yield time.time_ns(), await self._reader.readexactly(length)
            return
        while size := int(await self._reader.readline(), 16):
            chunk = await self._reader.readexactly(size + 2)
            at = time.time_ns()
            for line in chunk.splitlines():
                yield at, line
        await self._reader.readline()

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()


def measure(
    sessions: int = 48, long: int = 3, first_ms: float = 20.0, engines: Sequence[str] = ENGINES
) -> list[Figure]:
    """Return the milliseconds added to the first token, and their share of the engine's own time, for each engine.

    sessions: number of sessions with one turn. long: number of sessions with LATE turns. first_ms: the scripted
    engine's own time.
    """
    results = []
    for engine in engines:
        with tempfile.TemporaryDirectory() as folder:
            late = long if engine == "scripted" else 0  # the demo's model has a context of 512 tokens
            results += figures(engine, asyncio.run(timed_turns(engine, Path(folder), sessions, late, first_ms)))
    return results


def figures(engine: str, run: Timings) -> list[Figure]:
    """Return the figures of the first turns and of the late turns."""
    late = [times for number, some in run.turns.items() if LATE - NEAR < number <= LATE for times in some]
    results = []
    for name, some in (("turn 1", run.turns.get(1, [])), (f"turn {LATE}", late)):
        if not some:
            continue
        added, own = sorted(times.added_ms for times in some), statistics.median(times.engine_ms for times in some)
        parts = {part: statistics.median(seconds(times) for times in some) * 1e3 for part, seconds in PARTS.items()}
        note = (
            f"p99 {added[int(0.99 * (len(added) - 1))]:.1f} ms of {len(added)} turns; the engine's own {own:.1f} ms; "
            + ", ".join(f"{part} {ms:.2f}" for part, ms in parts.items())
            + f"; on this disk an append of two events takes {run.two_ms:.2f} ms, of one {run.one_ms:.2f} ms; uvicorn "
            + f"and nats-py alone add {run.floor_ms:.1f} ms"
        )
        figure = partial(Figure, better=Better.LOWER, note=note)
        median = statistics.median(added)
        name = f"added to the first token of {name}, {engine}"
        results.append(figure(name=name, value=median, unit="ms", target=2.0))
    if late:
        share = statistics.median(times.added_ms / times.engine_ms for times in late)
        name = f"the same as a share of the engine's, {engine}"
        results.append(Figure(name=name, value=share, unit="share", target=0.01, better=Better.LOWER))
    return results


PARTS: dict[str, Callable[[Times], float]] = {
    "request read and placed": lambda times: times.began - times.sent,
    "to the engine": lambda times: times.called - times.began,
    "chunk made": lambda times: times.appending - times.generated,
    "to the client": lambda times: times.received - times.appending,
}


async def timed_turns(kind: str, folder: Path, sessions: int, long: int, first_ms: float) -> Timings:
    """Run sessions with one engine; see `measure` for the arguments."""
    settings = settings_of(folder)
    run = RunFolder.create(folder, RUN)
    run.settings.write_text(f'[run]\nrun = "{RUN}"\n')
    token, port = Sources(run.path).issue("bench"), free_port()
    gateway, stamps = f"127.0.0.1:{port}", folder / "stamps"
    server = await own_server(run.path, RUN, agents=True)
    try:
        log = await JetStreamLog.open(server.address(Access.ROLES), RUN)
        server.stage_in_memory()
        worker = Participant(log, "conductor")
        await _begin(worker, settings, run, sessions + long)
        words = ["-m", "benchmarks.agent_engine", kind, str(run.path), str(stamps), str(first_ms / 1e3)]
        serve = ["-m", "slime_events.app.cli.main", "gateway", str(run.path), "--listen", gateway]
        async with running(words) as engine, running(serve, listens=True):
            await _activated(log, engine)
            requests = await _ask_all(gateway, token, sessions, long)
        one_ms, two_ms = [await _append_ms(worker, count) for count in (1, 2)]
        floor = await floor_ms(folder / "floor", first_ms)
        timings = Timings(await _times(log, stamps, requests), one_ms, two_ms, floor)
        await log.close()
        return timings
    finally:
        await server.stop()


async def _append_ms(worker: Participant, count: int) -> float:
    """Return the median time of appends of `count` small events, one after the other."""
    seconds = []
    for number in range(APPENDS):
        events = [
            RewardFailed(
                sample=f"a{count}-{number}-{n}", group=GROUP, kind=_KIND, message="", grader="bench", grader_digest=""
            )
            for n in range(count)
        ]
        begun = time.perf_counter()
        await worker.append(events)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds) * 1e3


async def _begin(worker: Participant, settings: TrainSettings, run: RunFolder, count: int) -> None:
    """Append the events of a run that waits for agents."""
    base = settings.engine.hf_checkpoint
    store = WeightStore(str(run.weights), base=base)
    tensors = [(name, t.dtype, t.shape, t.data) for name, t in open_checkpoint(base).items()]
    wrote = store.write(0, tensors, parent=None)
    url = store.folder(0, wrote.digest)
    prompt = pack_tokens(np.zeros(4, np.int32))
    waiting = RolloutRequested(
        sample="",
        group=GROUP,
        index=0,
        prompt=prompt,
        sampling=Sampling(max_new_tokens=ANSWER),
        seed=1,
        maker=Maker.AGENT,
    )
    submitted = PromptSubmitted(group=GROUP, text="?", tokens=prompt, source=Source(path="bench"))
    published = WeightsPublished(version=0, parent=None, url=url, digest=wrote.digest, bytes=wrote.bytes)
    await worker.append([RunStarted(settings=msgspec.to_builtins(settings), code_version="")])
    await worker.append([published, submitted])
    requests = [msgspec.structs.replace(waiting, sample=f"{GROUP}-s{n}", index=n) for n in range(count)]
    await append_all(worker.log, [once(worker.enclose(request)) for request in requests])


async def _activated(log: JetStreamLog, engine: asyncio.subprocess.Process) -> None:
    """Wait until the engine has its weights. Raises StorageError if it has ended."""
    async with asyncio.timeout(READY_S):
        while await log.last(of_type(RUN, "weights.activated")) is None:
            if engine.returncode is not None:
                raise StorageError(f"the engine ended with {engine.returncode}")
            await asyncio.sleep(0.1)


async def _ask_all(gateway: str, token: str, sessions: int, long: int) -> list[Request]:
    requests = list[Request]()
    for turns in [1] * sessions + [LATE] * long:
        agent = Agent(gateway, token)
        opened = await agent.open()
        chat: list[Any] = [{"role": "user", "content": "Find it."}]
        for number in range(1, turns + 1):
            sent, received, text = await agent.ask(opened["agent_key"], chat)
            requests.append(Request(f"{opened['sample']}", number, sent, received))
            chat += [{"role": "assistant", "content": text}, {"role": "user", "content": RESULT}]
        await agent.close()
    return requests


async def _times(log: JetStreamLog, stamps: Path, requests: Sequence[Request]) -> dict[int, list[Times]]:
    """Return the times of each turn, from the requests, the log and the engine's stamps."""
    stamped = {
        rid.rpartition("-")[0].rpartition("-")[0]: (a / 1e9, b / 1e9) for rid, a, b in map(json.loads, stamps.open())
    }
    began, first = dict[tuple[str, int], float](), dict[str, float]()
    async for recorded in log.read():
        event, at = recorded.envelope.event, recorded.envelope.at / 1e9
        if isinstance(event, TurnBegun):
            began[event.sample, event.index] = at
        elif isinstance(event, RolloutProgressed | RolloutCompleted):
            first.setdefault(event.sample, at)
    turns: dict[int, list[Times]] = {}
    for request in requests:
        call = sample_id(turn_group_id(request.sample, request.number - 1), 0)
        if request.received is not None:
            at = began[request.sample, request.number - 1]
            times = Times(request.sent, at, *stamped[call], first[call], request.received)
            turns.setdefault(request.number, []).append(times)
    return turns
