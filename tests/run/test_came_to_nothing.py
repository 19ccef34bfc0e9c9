"""A new run that fails before anything was made in it: its name is free again, and what others made is not touched."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from schemas.errors import RunNotFound, SlimeEventsError, TrainerError
from schemas.prompts import PromptSubmitted
from schemas.runs import RunFailed
from slime_events.app.launch.run import FAILED
from slime_events.core.config.settings import TrainSettings
from storage.archive.reader import ArchiveReader
from storage.jetstream.log import JetStreamLog
from storage.nats.server import NatsServer
from tests.run.cheap import CountingRanks, Parts, cheap_parts
from tests.run.tiny import Action, Watching, events_of, of, run_with, tiny
from tests.run.whole import LESSON, publish


class Broken(CountingRanks):
    """Publishes no weights."""

    async def reset(self) -> None:
        raise TrainerError("rank 0 has no device")


def fail(settings: TrainSettings, *actions: Action, kind: type[SlimeEventsError] = TrainerError) -> str:
    with cheap_parts(Parts(ranks=Broken())), pytest.raises(kind) as caught:
        asyncio.run(run_with(settings, *actions))
    return str(caught.value)


def test_its_folder_and_its_archive_are_gone_and_its_process_logs_are_not(tmp_path: Path) -> None:
    own, archives = tmp_path / "runs" / "early", tmp_path / "archives"
    settings = tiny(tmp_path, "early", run={"archive_url": str(archives)})
    logs = tmp_path / "runs" / FAILED / "early"

    async def say(_: Watching) -> None:
        (own / "logs" / "trainer-1.log").write_text("CUDA error: no device")

    for _ in range(2):  # the name is free again
        message = fail(settings, say)
        assert not own.exists()
        assert not (archives / "early").exists()
        assert f"(logs in {logs})" in message
        assert "CUDA error" in (logs / "trainer-1.log").read_text()


def test_what_else_lies_in_its_folder_stays(tmp_path: Path) -> None:
    note = tmp_path / "runs" / "early" / "my-notes.txt"
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    fail(tiny(tmp_path, "early"))
    assert list(note.parent.iterdir()) == [note]


def test_an_archive_of_another_run_of_that_name_stays(tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    settings = tiny(tmp_path, "early", rollout={"num_rollout": 1}, run={"archive_url": str(archives)})
    with cheap_parts(Parts()):
        asyncio.run(run_with(settings))
    last = ArchiveReader(str(archives), "early").last
    fail(
        tiny(tmp_path / "other", "early", run={"archive_url": str(archives), "runs_dir": str(tmp_path / "others")}),
        kind=SlimeEventsError,
    )
    assert ArchiveReader(str(archives), "early").last >= last


async def test_its_log_on_a_server_of_somebody_else_is_gone(tmp_path: Path) -> None:
    server = await NatsServer.start(tmp_path / "nats")
    try:
        settings = tiny(tmp_path, "early", run={"nats_url": server.url})
        with cheap_parts(Parts(ranks=Broken())), pytest.raises(TrainerError, match="no device"):
            await run_with(settings)
        with pytest.raises(RunNotFound):
            await JetStreamLog.open(server.url, "early", create=False)
    finally:
        await server.stop()


def test_prompts_from_outside_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They were acked, and nobody sends them again."""
    sent = asyncio.Event()

    async def wait(self: CountingRanks) -> None:
        await sent.wait()
        raise TrainerError("rank 0 has no device")

    async def produce(view: Watching) -> None:
        await view.until(lambda progress: any(worker.role == "inbox" for worker in progress.figures.workers))
        await publish(tmp_path / "runs" / "early")
        sent.set()

    monkeypatch.setattr(Broken, "reset", wait)
    fail(tiny(tmp_path, "early"), produce)
    events = events_of(tmp_path / "runs" / "early")
    assert len([event for event in of(events, PromptSubmitted) if event.dataset == "inbox"]) == len(LESSON)
    assert len(of(events, RunFailed)) == 1
