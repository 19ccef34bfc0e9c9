"""The launcher's own decisions, and the signals that stop it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from actors import ray_actors
from schemas.runs import FinishReason, RunFinished
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.launch.engine_watch import START_TRIES, EngineWatch
from slime_events.model.verify import verify
from storage.archive.reader import ArchiveReader
from storage.jetstream.log import JetStreamLog
from storage.open_log import open_run_log
from tests.run.cheap import LocalCluster, Parts, cheap_parts, lose
from tests.run.tiny import Watching, events_of, of, run_with, tiny


def joined(name: str) -> WorkerJoined:
    return WorkerJoined(worker=name, role="engine", pid=1, seconds={"engine": 7.0})


def lost(name: str) -> WorkerLost:
    return WorkerLost(worker=name, role="engine", reason="SGLang has no such backend")


def test_only_an_engine_in_the_place_of_another_is_news() -> None:
    watch = EngineWatch(replicas=2)
    assert [watch.apply(joined("a")), watch.apply(joined("b"))] == [None, None]
    news = watch.apply(joined("c"))
    assert news is not None
    assert "c replaces a lost engine" in news
    assert watch.apply(WorkerJoined(worker="t", role="trainer", pid=1)) is None


def test_an_engine_that_says_why_it_ends_is_quoted() -> None:
    assert EngineWatch(replicas=1).apply(lost("a")) == "a is lost: SGLang has no such backend"


def test_engines_that_never_start_are_given_up_and_engines_that_did_are_not() -> None:
    watch, lucky = EngineWatch(replicas=1), EngineWatch(replicas=1)
    lucky.apply(joined("a"))
    for number in range(START_TRIES):
        assert watch.hopeless is None
        watch.apply(lost(f"e{number}"))
        lucky.apply(lost(f"e{number}"))
    assert watch.hopeless is not None
    assert "SGLang has no such backend" in watch.hopeless
    assert lucky.hopeless is None


def test_a_model_whose_servers_never_start_is_given_up_although_engines_run() -> None:
    watch = EngineWatch(replicas=1, models=1)
    watch.apply(joined("a"))
    for number in range(START_TRIES):
        assert watch.hopeless is None
        watch.apply(WorkerLost(worker=f"m{number}", role="model", reason="no such folder"))
    assert "server of another model" in str(watch.hopeless)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    async def interrupt(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 2)
        os.kill(os.getpid(), number)

    view = Watching()
    with cheap_parts(Parts()):
        summary = asyncio.run(run_with(tiny(tmp_path, "stopped", rollout={"num_rollout": 1000}), interrupt, view=view))
    assert 2 <= summary["steps"] < 1000
    assert [note for note in view.notes if note.startswith("stopping: all acked events are in the log")]
    folder = tmp_path / "runs" / "stopped"
    events = events_of(folder)
    (end,) = of(events, RunFinished)
    assert (end.reason, end.steps) == (FinishReason.INTERRUPTED, summary["steps"])
    # What engines had under way may come after the end; the archive holds all up to it.
    ended = next(recorded.position for recorded in events if recorded.envelope.event is end)
    assert ArchiveReader(str(folder / "archive"), "stopped").last >= ended
    asyncio.run(_verify(folder))


def test_signals_that_ray_took_are_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's core sets its own handler below Python's, in whatever thread it is started."""
    start = LocalCluster.start

    def taking(self: LocalCluster) -> None:
        start(self)
        libc = ctypes.CDLL(None)
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        libc.signal(signal.SIGTERM, 1)  # SIG_IGN

    async def interrupt(view: Watching) -> None:
        await view.until(lambda p: p.state.version >= 1)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(LocalCluster, "start", taking)
    with cheap_parts(Parts()):
        asyncio.run(run_with(tiny(tmp_path, "stopped", rollout={"num_rollout": 30}), interrupt))
    (end,) = of(events_of(tmp_path / "runs" / "stopped"), RunFinished)
    assert end.reason is FinishReason.INTERRUPTED


def test_a_signal_that_a_wait_loses_ends_a_run_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = JetStreamLog.open

    async def losing(*args: Any, **named: Any) -> JetStreamLog:
        log = await opened(*args, **named)
        os.kill(os.getpid(), signal.SIGTERM)
        with contextlib.suppress(asyncio.CancelledError):  # as wait_for does in Python 3.11, once in a while
            await asyncio.sleep(60.0)
        return log

    monkeypatch.setattr(JetStreamLog, "open", losing)
    with cheap_parts(Parts()), pytest.raises(asyncio.CancelledError):
        asyncio.run(run_with(tiny(tmp_path, "stopped"), view=Watching()))
    monkeypatch.undo()
    assert not of(events_of(tmp_path / "runs" / "stopped"), WorkerJoined), "no role has been started"


def test_a_signal_that_comes_as_ray_ends_calls_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, late, stop = threading.Event(), list[None](), LocalCluster.stop

    class Hearing(Watching):
        def note(self, text: str) -> None:
            super().note(text)
            heard.set()

    def signalled(self: LocalCluster) -> None:
        stop(self)
        monkeypatch.setattr(LocalCluster, "call", lambda _, call: late.append(call.close()))
        heard.clear()
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard.wait(60.0)

    monkeypatch.setattr(LocalCluster, "stop", signalled)
    with cheap_parts(Parts()):
        summary = asyncio.run(run_with(tiny(tmp_path, "late", rollout={"num_rollout": 1}), view=Hearing()))
    assert (summary["steps"], late) == (1, [])


@pytest.mark.parametrize("dies", [False, True])
def test_a_signal_reaches_a_conductor_that_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: list[LocalCluster], dies: bool
) -> None:
    heard, stop = asyncio.Event(), ray_actors.ConductorActor.stop

    async def opening(*_: Any, **__: Any) -> None:
        if not heard.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
        await heard.wait()

    async def hearing(self: ray_actors.ConductorActor) -> None:
        await stop(self)
        if dies and not heard.is_set():
            lose(clusters[-1], "conductor")
        heard.set()

    monkeypatch.setattr(ray_actors, "archived_prompts", opening)
    monkeypatch.setattr(ray_actors.ConductorActor, "stop", hearing)
    with cheap_parts(Parts()):
        summary = asyncio.run(run_with(tiny(tmp_path, "stopped")))
    (end,) = of(events_of(tmp_path / "runs" / "stopped"), RunFinished)
    assert (end.reason, summary["steps"]) == (FinishReason.INTERRUPTED, 0)


async def _verify(folder: Path) -> None:
    async with open_run_log(folder) as log:
        await verify(log)
