"""An engine that begins with a request while it is stored: the log has what it would have without that."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from schemas.arrays import unpack
from schemas.errors import AccessDenied
from schemas.event import Event, Purpose
from schemas.rollouts import Maker, RolloutCompleted, RolloutProgressed, RolloutRequested, Sampling
from schemas.subjects import about
from schemas.weights import WeightsActivated
from serve_apps.engines.engine import Delta, GenerateRequest
from serve_apps.engines.engine_weights import EngineWeights
from serve_apps.rollouts import early_requests
from serve_apps.rollouts.early_requests import EARLY_MOST
from serve_apps.rollouts.rollout import ChunkRule
from serve_apps.rollouts.rollout_worker import EngineContext, RolloutWorker
from slime_events.core.run.participant import Participant
from storage.blobs import BlobStore
from storage.group_commit import GroupCommit
from storage.log import Append, Fence, Recorded, once
from storage.memory_log import MemoryLog
from storage.payloads import fetch, offload_async
from storage.weights.store import WeightStore
from tests import made
from tests.agents.lone_session import LoneSession
from tests.agents.stage import ask
from tests.scripted_engine import Script, ScriptedEngine

RUN, ENGINE, SAMPLE = "early", "engine-1", "c-s0"
REQUEST = made.requested(SAMPLE, prompt=[1, 2], max_new_tokens=12, purpose=Purpose.CALL, streams=True)


class Counting(ScriptedEngine):
    """It notes what it was asked."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.requests: list[str] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Delta]:
        """See `Engine.generate`."""
        self.requests.append(request.rid)
        async with contextlib.aclosing(super().generate(request)) as deltas:  # type: ignore[type-var]
            async for delta in deltas:
                yield delta


class Stage:
    """An engine at work on a log, and a gateway that speaks by hand."""

    def __init__(self, folder: Path, script: Script, *, room: int = 64) -> None:
        self.log, self.engine = MemoryLog(RUN), Counting(script)
        self.gateway = Participant(self.log, "gateway")
        self._store, self._blobs = WeightStore(str(folder / "weights")), BlobStore(str(folder / "blobs"))
        self._room = room

    async def publish(self, version: int) -> None:
        """Weights."""
        tensors = [("w", "F32", (8,), bytes([version]) * 32)]
        wrote = self._store.write(version, tensors, parent=version - 1 if version else None)
        url, parent = self._store.folder(version, wrote.digest), version - 1 if version else None
        published = made.published(version, parent=parent, url=url, digest=wrote.digest, bytes=wrote.bytes)
        await self.gateway.append([published])
        await self.until(lambda: any(event.version == version for event in self.events(WeightsActivated)))

    async def __aenter__(self) -> Stage:
        await self.engine.start(1.0)
        self._stack = contextlib.AsyncExitStack()
        worker, commit = Participant(self.log, "engine", ENGINE), GroupCommit(self.log)
        await self._stack.enter_async_context(commit)
        weights = EngineWeights(worker, self.engine, commit)
        give, put = partial(fetch, blobs=self._blobs), partial(offload_async, blobs=self._blobs)
        context = EngineContext(worker, self.engine, commit, give, put, weights, ChunkRule(64, 60.0))
        work = asyncio.create_task(RolloutWorker(context, self._room).run())
        self._stack.push_async_callback(partial(asyncio.wait, {work}))
        self._stack.callback(work.cancel)
        await self.publish(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def tell(self, request: RolloutRequested = REQUEST) -> Append:
        """It early; what is to be appended."""
        append = once(self.gateway.enclose(request))
        recorded = Recorded(0, append.envelope.subject, append.envelope, append.encoded())
        await self.log.notify(ENGINE, [recorded], early=True)
        return append

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def events(self, *kinds: type[Event], sample: str | None = None) -> list[Event]:
        """Return the events of the log."""
        all_ = [record.envelope.event for record in self.log.records]
        mine = [event for event in all_ if sample is None or getattr(event, "sample", "") == sample]
        return [event for event in mine if isinstance(event, kinds or Event)]

    async def ended(self, sample: str = SAMPLE) -> RolloutCompleted:
        await self.until(lambda: bool(self.events(RolloutCompleted, sample=sample)))
        (completed,) = self.events(RolloutCompleted, sample=sample)
        assert isinstance(completed, RolloutCompleted)
        return completed


def names(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


async def _as_ever(folder: Path) -> tuple[list[str], RolloutCompleted]:
    async with Stage(folder, Script(chunk=4)) as stage:
        await stage.log.append([once(stage.gateway.enclose(REQUEST))])
        completed = await stage.ended()
        return names(stage.events(sample=SAMPLE)), completed


async def test_the_log_is_as_without_it(tmp_path: Path) -> None:
    async with Stage(tmp_path / "early", Script(chunk=4)) as stage:
        end, append = await stage.log.end(), await stage.tell()
        await stage.until(lambda: stage.engine.tokens_generated > 0)
        await asyncio.sleep(0.05)
        assert await stage.log.end() == end, "nothing of it is published before the log has the request"
        await stage.log.append([append])
        completed = await stage.ended()
        assert stage.engine.requests == [f"{SAMPLE}-0-0"], "it was begun once, before"
        plain, usual = await _as_ever(tmp_path / "usual")
        assert names(stage.events(sample=SAMPLE)) == plain
        assert (completed.digest, completed.spans, completed.stop) == (usual.digest, usual.spans, usual.stop)
        causes = {recorded.envelope.cause async for recorded in stage.log.read(1, about(RUN, "rollout", SAMPLE))}
        assert causes == {None, append.envelope.id}
    assert stage.engine.running == 0


async def test_what_never_comes_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no trace if the gateway is killed between, or another one was first."""
    monkeypatch.setattr(early_requests, "EARLY_S", 0.05)
    async with Stage(tmp_path, Script(chunk=1, seconds_per_chunk=0.02)) as stage:
        end = await stage.log.end()
        append = await stage.tell(replace(REQUEST, sampling=Sampling(max_new_tokens=1000)))
        await stage.until(lambda: stage.engine.running == 1)
        await stage.until(lambda: stage.engine.running == 0)
        assert await stage.log.end() == end
        await stage.log.append([append])  # later than it waits: as if nobody had told
        await stage.until(lambda: len(stage.engine.requests) == 2)


async def test_who_is_ended_meanwhile_ends_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Script(chunk=1, seconds_per_chunk=0.02))
    async with stage:
        end = await stage.log.end()
        await stage.tell()
        await stage.until(lambda: stage.engine.running == 1)
    assert stage.engine.running == 0
    assert await stage.log.end() == end


async def test_another_engine_was_first(tmp_path: Path) -> None:
    async with Stage(tmp_path, Script(chunk=4, seconds_per_chunk=0.05)) as stage:
        append = await stage.tell()
        chunk = made.progressed(SAMPLE, [9], log_probs=[-1.0], engine="engine-2")
        (at,) = await stage.log.append([append])
        fence = Fence(about(RUN, "rollout", SAMPLE), at)
        await stage.log.append([Append(stage.gateway.enclose(chunk), fence)])
        await stage.until(lambda: stage.engine.requests != [] and stage.engine.running == 0)
        assert stage.events(sample=SAMPLE)[1:] == [chunk]


async def test_what_the_log_has_counts_and_not_what_was_told(tmp_path: Path) -> None:
    async with Stage(tmp_path, Script(chunk=4)) as stage:
        await stage.tell(replace(REQUEST, seed=7))
        await stage.log.append([once(stage.gateway.enclose(REQUEST))])
        completed = await stage.ended()
        _, usual = await _as_ever(tmp_path / "usual")
        assert completed.digest == usual.digest


async def test_told_twice_and_after_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_requests, "EARLY_S", 0.05)
    async with Stage(tmp_path, Script(chunk=4, seconds_per_chunk=0.02)) as stage:
        append = await stage.tell()
        await stage.tell()
        await stage.log.append([append])
        await stage.until(lambda: bool(stage.events(RolloutProgressed)))
        await stage.tell()
        await stage.ended()
        assert stage.engine.requests == [f"{SAMPLE}-0-0"]
        end = await stage.log.end()
        await stage.tell()  # nobody can know that it has ended: it is dropped in its time
        await stage.until(lambda: stage.engine.running == 0 and len(stage.engine.requests) <= 2)
        assert await stage.log.end() == end


async def test_weights_that_are_loaded_meanwhile(tmp_path: Path) -> None:
    """The tokens are of the versions that their spans say."""
    async with Stage(tmp_path, Script(chunk=4, seconds_per_chunk=0.1)) as stage:
        append = await stage.tell()
        await stage.until(lambda: stage.engine.tokens_generated == 4)
        await stage.publish(1)
        await stage.log.append([append])
        completed = await stage.ended()
        assert [(span.start, span.end, span.version) for span in completed.spans] == [(0, 4, 0), (4, 12, 1)]
        chunks = [event for event in stage.events(RolloutProgressed) if isinstance(event, RolloutProgressed)]
        log_probs = [value for event in [*chunks, completed] for value in unpack(event.log_probs).tolist()]
        log_probs_ = [stage.engine.log_prob(1, 2 + at, 0 if at < 4 else 1) for at in range(12)]
        assert log_probs == pytest.approx(log_probs_)


async def test_weights_that_it_may_not_have(tmp_path: Path) -> None:
    """Load nothing for an evaluation, or for weights that are not there yet: they may never come."""
    async with Stage(tmp_path, Script()) as stage:
        await stage.tell(replace(REQUEST, max_version=0))
        await stage.tell(replace(REQUEST, sample="d-s0", group="d", min_version=1))
        await asyncio.sleep(0.05)
        assert stage.engine.requests == []


@pytest.mark.parametrize(("room", "most"), [(64, EARLY_MOST), (2, 2)])
async def test_early_ones_are_bounded(tmp_path: Path, room: int, most: int) -> None:
    """Bound what a forged notice costs, and keep it from preventing rollouts."""
    async with Stage(tmp_path, Script(chunk=4, seconds_per_chunk=0.2), room=room) as stage:
        for number in range(EARLY_MOST + 5):
            await stage.tell(replace(REQUEST, sample=f"f{number}-s0", group=f"f{number}"))
        await stage.until(lambda: stage.engine.running >= most)
        await asyncio.sleep(0.05)
        assert len(stage.engine.requests) == most
        await stage.log.append([once(stage.gateway.enclose(REQUEST))])
        await stage.ended()


async def test_what_no_engine_makes_is_not_begun(tmp_path: Path) -> None:
    async with Stage(tmp_path, Script()) as stage:
        for other in ({"purpose": Purpose.TRAIN}, {"attempt": 1}, {"maker": Maker.AGENT}):
            await stage.tell(replace(REQUEST, **other))
        envelope = stage.gateway.enclose(made.published(5))
        await stage.log.notify(ENGINE, [Recorded(0, envelope.subject, envelope, b"")], early=True)
        await asyncio.sleep(0.05)
        assert stage.engine.requests == []


class Waiting(MemoryLog):
    """It stores the request of a turn only once the engine has begun with it."""

    begun: Callable[[str], bool] = staticmethod(lambda _: True)

    async def append(self, appends: Sequence[Append]) -> list[int]:
        for event in [append.envelope.event for append in appends]:
            if isinstance(event, RolloutRequested) and event.purpose is Purpose.CALL:
                async with asyncio.timeout(10):
                    while not self.begun(event.sample):  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
        return await super().append(appends)


async def _two_turns(log: MemoryLog, folder: Path, begun: list[Callable[[str], bool]], **rules: int) -> None:
    lone = LoneSession(log, folder, 4)
    await lone.begin()
    async with lone.engine() as engine:
        begun.append(lambda sample: sample in engine.prompts)
        async with asyncio.timeout(10):
            while not [record for record in log.records if "weights.activated" in record.subject]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        async with lone.gateway(**rules) as client:
            session = await lone.open(client)
            chat = [{"role": "user", "content": "2+3="}]
            for _ in range(2):
                chat += [await ask(client, session, chat), {"role": "user", "content": "more"}]


async def test_a_gateway_tells_its_engine_of_each_turn(tmp_path: Path) -> None:
    begun: list[Callable[[str], bool]] = []
    log = Waiting(RUN)
    log.begun = lambda sample: begun[0](sample)
    await _two_turns(log, tmp_path, begun)


class Mute(MemoryLog):
    """Its credentials may not tell early."""

    tried = 0

    async def notify(self, listener: str, events: Sequence[Recorded], *, early: bool = False) -> None:
        self.tried += early
        if early:
            raise AccessDenied("not with these credentials")
        await super().notify(listener, events)


@pytest.mark.parametrize(("engines", "tried"), [(1, 1), (2, 0)])
async def test_a_gateway_that_may_not_tell_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, engines: int, tried: int
) -> None:
    """And of several engines it tells none: the log chooses one."""
    log = Mute(RUN)
    await _two_turns(log, tmp_path, [], engines=engines)
    assert log.tried == tried
    assert sum("only once it is in the log" in record.getMessage() for record in caplog.records) == tried
