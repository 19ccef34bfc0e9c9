"""Test what a run's clients train, and where the run listens for them: by its settings, its checkpoint and its log."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from schemas.errors import InvalidValue
from schemas.runs import Branched
from schemas.workers import WorkerJoined
from serve_apps.http.tinker import actor
from serve_apps.http.tinker.actor import TinkerActor, check_tinker
from serve_apps.http.tinker.served import LONGEST, served_model
from slime_events.core.checkpoint.vocabulary import HIGHEST
from slime_events.core.config.settings import TrainSettings
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_address import RunAddress
from storage.jetstream.address import NatsAddress
from storage.memory_log import MemoryLog
from storage.nats.ports import free_port
from tests import made


def settings_of(folder: Path, config: dict[str, Any], tinker: str | None = None, **rollout: Any) -> TrainSettings:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    settings, replace = TrainSettings(), msgspec.structs.replace
    return replace(
        settings,
        engine=replace(settings.engine, hf_checkpoint=str(model)),
        rollout=replace(settings.rollout, **rollout),
        run=replace(settings.run, tinker=tinker),
    )


async def log_of(branched: Branched | None = None) -> MemoryLog:
    return await made.log(made.started(branched=branched), run="sim")


CONFIG = {"architectures": ["TinyForCausalLM"], "vocab_size": 300, "max_position_embeddings": 64, "model_type": "tiny"}


async def test_the_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    served = await served_model(await log_of(), settings_of(tmp_path, CONFIG, rollout_seed=9))
    assert (served.name, served.short) == (str(tmp_path / "model"), "model")
    assert (served.architecture, served.vocabulary, served.longest) == ("TinyForCausalLM", 300, 64)
    assert (served.first, served.seed) == (0, 9)


async def test_what_it_does_not_say_is_taken_for_the_widest(tmp_path: Path) -> None:
    for config, name in (({"model_type": "tiny"}, "tiny"), ({}, "")):
        served = await served_model(await log_of(), settings_of(tmp_path, config))
        assert served.architecture == name
        assert (served.vocabulary, served.longest) == (HIGHEST + 1, LONGEST)


async def test_a_run_of_its_own_begins_with_version_0(tmp_path: Path) -> None:
    for log in (MemoryLog("sim"), await log_of()):
        assert (await served_model(log, settings_of(tmp_path, CONFIG))).first == 0


async def test_a_branch_begins_with_its_version(tmp_path: Path) -> None:
    branched = Branched(run="parent", where="w", position=9, version=3, weights_digest="d", optimizer_digest="o")
    log = await log_of(branched)
    await Participant(log, "x").append_fenced(made.started(code_version="later"))
    served = await served_model(log, settings_of(tmp_path, CONFIG))
    assert served.first == 3


def test_clients_are_listened_to_on_this_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    check_tinker(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)), pytest.raises(InvalidValue):
        check_tinker(f"127.0.0.1:{port}")
    with pytest.raises(InvalidValue):
        check_tinker(f"0.0.0.0:{port}")
    monkeypatch.setattr(actor, "find_spec", lambda _: None)
    with pytest.raises(InvalidValue):
        check_tinker(f"127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def answering(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Any, MemoryLog]]:
    """The actor's task and its log, once it answers."""
    where, log = f"127.0.0.1:{free_port()}", await log_of()

    @contextlib.asynccontextmanager
    async def join(_: RunAddress, role: str) -> AsyncIterator[Participant]:
        yield Participant(log, role)

    monkeypatch.setattr(actor, "join_run", join)
    blobs = str(folder / "blobs")
    address = RunAddress(
        run="sim", nats=NatsAddress(url=""), folder=str(folder), blob_url=blobs, archive_url="", weights_url=""
    )
    async with asyncio.timeout(30.0):
        running = asyncio.create_task(TinkerActor().run(address, settings_of(folder, CONFIG, where)))
        async with httpx.AsyncClient(base_url=f"http://{where}") as client:
            while not running.done():
                with contextlib.suppress(httpx.TransportError):
                    answer = await client.get("/api/v1/healthz")
                    break
                await asyncio.sleep(0)
            assert answer.json() == {"status": "ok"}
            yield running, log
            await asyncio.wait([running])
            with pytest.raises(httpx.TransportError):
                await client.get("/api/v1/healthz")


async def test_it_answers_to_the_end_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(tmp_path, monkeypatch) as (running, log):
        (joined,) = [recorded.envelope.event for recorded in log.events_after(1)]
        assert isinstance(joined, WorkerJoined)
        assert joined.role == "tinker"
        assert 0.0 <= joined.seconds["ready"] < 60.0
        over = made.finished(events=2)
        await Participant(log, "conductor").append_fenced(over)
    assert running.result() is None


async def test_who_is_cancelled_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = asyncio.all_tasks()
    async with answering(tmp_path, monkeypatch) as (running, _):
        running.cancel()
    assert running.cancelled()
    assert asyncio.all_tasks() == before
