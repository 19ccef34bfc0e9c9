"""What the gateway adds to an engine's time to first token, at the first turn and at a late one of a session.

The client streams chat completions from a gateway in a process of its own; an engine in another one makes them. The
engine's own time, from the call of `generate` to its first token, is taken in the same turn: what is left of the
client's time is what the gateway, the log and the way between them add. All clocks are the machine's own.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.agent_engine import ANSWER, READY_S, RUN, settings_of
from benchmarks.agent_floor import floor_ms, running
from benchmarks.figure import Better, Figure
from schemas.arrays import pack_tokens
from schemas.errors import StorageError
from schemas.ids import sample_id, turn_group_id
from schemas.prompts import PromptSubmitted, Source
from schemas.rewards import RewardFailed, RewardFailureKind
from schemas.rollouts import RolloutCompleted, RolloutProgressed, RolloutRequested, Sampling
from schemas.runs import RunStarted
from schemas.subjects import of_type
from schemas.turns import TurnBegun
from schemas.weights import WeightsPublished
from serve_apps.gateway.sources import Sources
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
"""Turns up to the late one that are taken together."""
SAID = "The tool says that the answer is 42. " * 8
APPENDS = 50
ENGINES = ("scripted", "SGLang")
_KIND = RewardFailureKind.TIMEOUT


class Times(NamedTuple):
    """Of one turn, in seconds of one clock. began, appending: before the appends of the turn and of its first chunk."""

    sent: float
    began: float
    asked: float
    made: float
    appending: float
    heard: float

    @property
    def engine_ms(self) -> float:
        """The engine's own time to first token."""
        return (self.made - self.asked) * 1e3

    @property
    def added_ms(self) -> float:
        """What the client waited longer."""
        return (self.heard - self.sent) * 1e3 - self.engine_ms


class Timings(NamedTuple):
    """turns: by number. one_ms, two_ms: of an append of one event and of two, on the same log. floor_ms: what is added
    where there is nothing but uvicorn and nats-py (`agent_floor`).
    """

    turns: dict[int, list[Times]]
    one_ms: float
    two_ms: float
    floor_ms: float


class Asked(NamedTuple):
    """One turn as its client saw it. heard: when the first text came; None where there was none."""

    sample: str
    number: int
    sent: float
    heard: float | None


class Agent:
    """One connection to a gateway, and the chat of one session at a time."""

    def __init__(self, gateway: str, token: str) -> None:
        self._host, _, self._port = gateway.rpartition(":")
        self._token = token
        self._reader: Any = None
        self._writer: Any = None

    async def open(self) -> dict[str, Any]:
        """A session."""
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        lines = await self._post(f"/v1/runs/{RUN}/sessions", self._token, b'{"wait_s": 20}')
        return dict(json.loads(b"".join([line async for _, line in lines])))

    async def ask(self, key: str, chat: Sequence[Any]) -> tuple[float, float | None, str]:
        """When it was sent, when the first text came (None: there was none), and the text."""
        body = json.dumps({"model": "m", "messages": chat, "max_tokens": ANSWER, "stream": True}).encode()
        sent, heard, said = time.time_ns(), None, ""
        async for at, line in await self._post("/v1/chat/completions", key, body):
            if line.startswith(b"data: {"):
                part = json.loads(line[6:])
                if "error" in part:
                    raise StorageError(f"the gateway said: {part}")
                said += next((one["delta"].get("content") or "" for one in part["choices"]), "")
                heard = at if said and heard is None else heard
        return sent / 1e9, heard and heard / 1e9, said

    async def _post(self, path: str, key: str, data: bytes) -> AsyncIterator[tuple[int, bytes]]:
        """The lines of the answer's body, each with when it came. Raises StorageError."""
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {key}\r\n"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        status = await self._reader.readline()
        fields = [line async for line in self._until_blank()]
        if b" 20" not in status:
            raise StorageError(f"the gateway said {status!r}: {await self._reader.read(2000)!r}")
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
        """Its connection."""
        self._writer.close()


def measure(
    sessions: int = 48, long: int = 3, first_ms: float = 20.0, engines: Sequence[str] = ENGINES
) -> list[Figure]:
    """Milliseconds that are added to the first token, and their share of the engine's own, for each engine.

    sessions: of one turn; long: of LATE turns. first_ms: the scripted engine's own time.
    """
    found = []
    for engine in engines:
        with tempfile.TemporaryDirectory() as folder:
            late = long if engine == "scripted" else 0  # the demo's model has a context of 512 tokens
            found += figures(engine, asyncio.run(timed_turns(engine, Path(folder), sessions, late, first_ms)))
    return found


def figures(engine: str, run: Timings) -> list[Figure]:
    """Of the first turns, and of the late ones."""
    found, late = [], [one for number, some in run.turns.items() if LATE - NEAR < number <= LATE for one in some]
    for name, some in (("turn 1", run.turns.get(1, [])), (f"turn {LATE}", late)):
        if not some:
            continue
        added, own = sorted(one.added_ms for one in some), statistics.median(one.engine_ms for one in some)
        parts = {part: statistics.median(taken(one) for one in some) * 1e3 for part, taken in PARTS.items()}
        note = (
            f"p99 {added[int(0.99 * (len(added) - 1))]:.1f} ms of {len(added)} turns; the engine's own {own:.1f} ms; "
            + ", ".join(f"{part} {ms:.2f}" for part, ms in parts.items())
            + f"; on this disk an append of two events takes {run.two_ms:.2f} ms, of one {run.one_ms:.2f} ms; the same "
            + f"way through uvicorn and nats-py alone adds {run.floor_ms:.1f} ms"
        )
        figure = partial(Figure, better=Better.LOWER, note=note)
        median = statistics.median(added)
        found.append(figure(name=f"added to the first token of {name}, {engine}", value=median, unit="ms", target=2.0))
    if late:
        share = statistics.median(one.added_ms / one.engine_ms for one in late)
        name = f"the same as a share of the engine's, {engine}"
        found.append(Figure(name=name, value=share, unit="share", target=0.01, better=Better.LOWER))
    return found


PARTS = {
    "request read and placed": lambda one: one.began - one.sent,
    "to the engine": lambda one: one.asked - one.began,
    "chunk made": lambda one: one.appending - one.made,
    "to the client": lambda one: one.heard - one.appending,
}


async def timed_turns(kind: str, folder: Path, sessions: int, long: int, first_ms: float) -> Timings:
    """See `measure`."""
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
            asked = await _ask_all(gateway, token, sessions, long)
        one_ms, two_ms = [await _append_ms(worker, count) for count in (1, 2)]
        floor = await floor_ms(folder / "floor", first_ms)
        timings = Timings(await _times(log, stamps, asked), one_ms, two_ms, floor)
        await log.close()
        return timings
    finally:
        await server.stop()


async def _append_ms(worker: Participant, count: int) -> float:
    """Median of appends of so many small events, one after the other."""
    found = []
    for number in range(APPENDS):
        events = [
            RewardFailed(
                sample=f"a{count}-{number}-{n}", group=GROUP, kind=_KIND, message="", grader="bench", grader_digest=""
            )
            for n in range(count)
        ]
        begun = time.perf_counter()
        await worker.append(events)
        found.append(time.perf_counter() - begun)
    return statistics.median(found) * 1e3


async def _begin(worker: Participant, settings: TrainSettings, run: RunFolder, count: int) -> None:
    """A run that waits for agents."""
    base = settings.engine.hf_checkpoint
    store = WeightStore(str(run.weights), base=base)
    tensors = [(name, t.dtype, t.shape, t.data) for name, t in open_checkpoint(base).items()]
    wrote = store.write(0, tensors, parent=None)
    url = store.folder(0, wrote.digest)
    prompt = pack_tokens(np.zeros(4, np.int32))
    waiting = RolloutRequested(
        sample="", group=GROUP, index=0, prompt=prompt, sampling=Sampling(max_new_tokens=ANSWER), seed=1, agents=True
    )
    asked = PromptSubmitted(group=GROUP, text="?", tokens=prompt, source=Source(path="bench"))
    published = WeightsPublished(version=0, parent=None, url=url, digest=wrote.digest, bytes=wrote.bytes)
    await worker.append([RunStarted(settings=msgspec.to_builtins(settings), code_version="")])
    await worker.append([published, asked])
    requests = [msgspec.structs.replace(waiting, sample=f"{GROUP}-s{n}", index=n) for n in range(count)]
    await append_all(worker.log, [once(worker.enclose(one)) for one in requests])


async def _activated(log: JetStreamLog, engine: asyncio.subprocess.Process) -> None:
    """Until the engine has its weights. Raises StorageError where it ended."""
    async with asyncio.timeout(READY_S):
        while await log.last(of_type(RUN, "weights.activated")) is None:
            if engine.returncode is not None:
                raise StorageError(f"the engine ended with {engine.returncode}")
            await asyncio.sleep(0.1)


async def _ask_all(gateway: str, token: str, sessions: int, long: int) -> list[Asked]:
    asked = list[Asked]()
    for turns in [1] * sessions + [LATE] * long:
        agent = Agent(gateway, token)
        opened = await agent.open()
        chat: list[Any] = [{"role": "user", "content": "Find it."}]
        for number in range(1, turns + 1):
            sent, heard, said = await agent.ask(opened["agent_key"], chat)
            asked.append(Asked(f"{opened['sample']}", number, sent, heard))
            chat += [{"role": "assistant", "content": said}, {"role": "user", "content": SAID}]
        await agent.close()
    return asked


async def _times(log: JetStreamLog, stamps: Path, asked: Sequence[Asked]) -> dict[int, list[Times]]:
    """The log and the engine say what happened between."""
    made = {
        rid.rpartition("-")[0].rpartition("-")[0]: (a / 1e9, b / 1e9) for rid, a, b in map(json.loads, stamps.open())
    }
    began, first = dict[tuple[str, int], float](), dict[str, float]()
    async for recorded in log.read():
        event, at = recorded.envelope.event, recorded.envelope.at / 1e9
        if isinstance(event, TurnBegun):
            began[event.sample, event.index] = at
        elif isinstance(event, RolloutProgressed | RolloutCompleted):
            first.setdefault(event.sample, at)
    found: dict[int, list[Times]] = {}
    for one in asked:
        call = sample_id(turn_group_id(one.sample, one.number - 1), 0)
        if one.heard is not None:
            times = Times(one.sent, began[one.sample, one.number - 1], *made[call], first[call], one.heard)
            found.setdefault(one.number, []).append(times)
    return found
