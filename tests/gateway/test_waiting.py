"""Test prompts that come while no conductor runs: they wait in the log, and the next conductor takes them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from schemas.errors import InboxFull, LogUnavailable, RunIsOver, StorageError
from schemas.ids import inbox_group_id
from schemas.inbox import Fate
from schemas.prompts import PromptOffered, PromptRejected, PromptSubmitted, PromptWanted
from schemas.runs import FinishReason, RunFinished
from serve_apps.http.gateway.live_run import LiveRun
from slime_events.core.run.participant import Participant
from slime_events.core.run.run_folder import RunFolder
from slime_events.core.state.run import RunPhase
from slime_events.loop.conductor.decide import Stall
from slime_events.loop.prompts.offered import offer
from slime_events.model.fates import fate_of
from storage.jetstream.log import JetStreamLog
from storage.memory_log import MemoryLog
from storage.nats.accounts import Access
from storage.open_log import own_server
from tests import made
from tests.cli.invoke import command
from tests.run.cheap import Parts, cheap_parts
from tests.run.tiny import GROUPS, Watching, events_of, of, run_with, tiny
from tests.scripted_engine import Script
from tests.simulation.simulation import Simulation, make_plan

RUN = "waits"
LINES = [json.dumps({"key": str(n), "prompt": f"{n}+1", "label": str(n + 1)}) for n in range(GROUPS)]
PROMPTS = f"[{','.join(LINES)}]".encode()


async def test_an_offer_becomes_a_prompt_or_is_rejected(tmp_path: Path) -> None:
    async with Simulation(tmp_path, make_plan(steps=2), prompts=[]) as simulation:
        await offer(simulation.log, b'{"key": "long", "prompt": "%s"}' % (b"x" * 300), "quiz", "gateway")
        await offer(simulation.log, b'{"key": "n", "prompt": "1", "metadata": {"rm_type": "n"}}', "quiz", "gateway")
        simulation.start_engine(Script(chunk=8))
        await offer(simulation.log, PROMPTS, "quiz", "gateway")
        assert await simulation.finish() is RunPhase.FINISHED
        group = inbox_group_id("long", "quiz")
        refused, ungradable = simulation.events(PromptRejected)
        assert ungradable.reason.startswith("ungradable")
        assert (refused.group, refused.source.sender, refused.source.key) == (group, "quiz", "long")
        fate = await fate_of(simulation.log, group, "quiz")
        assert (fate.fate, fate.reason) == (Fate.REJECTED, refused.reason)
        submitted = simulation.events(PromptSubmitted, dataset="inbox")
        assert {event.source.key for event in submitted} == {str(n) for n in range(GROUPS)}
        assert simulation.conductor.state.offers == {}


async def test_a_prompt_is_offered_once_and_not_after_it_was_taken_in() -> None:
    log = MemoryLog("sim")
    worker = Participant(log, "launcher")
    await worker.append([made.started()])
    first = await offer(log, b'{"key": "a", "prompt": "1"}', "quiz", "gateway")
    again = await offer(log, b'{"key": "a", "prompt": "1"}', "quiz", "gateway")
    assert first == again
    assert await log.position() == 2
    with pytest.raises(LogUnavailable):
        await offer(MemoryLog("new"), b'{"key": "a", "prompt": "1"}', "quiz", "gateway")
    wrong = await offer(log, b'{"key": "a", "prompt": 1}', "quiz", "gateway")
    assert (wrong.accepted, wrong.errors[0].field) == (False, "prompt")
    with pytest.raises(InboxFull):
        await offer(log, b'{"key": "b", "prompt": "1"}', "quiz", "gateway", most=1)
    over = made.finished(events=2)
    await worker.append_fenced(over)
    with pytest.raises(RunIsOver):
        await offer(log, b'{"key": "c", "prompt": "1"}', "quiz", "gateway")


def test_who_waits_for_others_does_not_stall() -> None:
    stall = Stall(10.0, 5.0, 0.0)
    assert [stall.seconds(1, now, excused=True) for now in (5.0, 10.0, 15.0, 20.0)] == [None] * 4
    assert [stall.seconds(1, now) for now in (25.0, 30.0)] == [None, 10.0]


def test_prompts_between_two_lives_of_a_run_are_trained_on(tmp_path: Path) -> None:
    """The run has no prompts of its own, and its deadline is shorter than what it waits for them."""
    run = RunFolder(tmp_path / "runs", RUN)

    async def wait_and_stop(view: Watching) -> None:
        await view.until(lambda progress: progress.state.version >= 0 and bool(progress.state.activated))
        await asyncio.sleep(3.0)
        os.kill(os.getpid(), signal.SIGTERM)

    async def send() -> None:
        async with LiveRun(run) as live:
            assert (await live.send(f"[{','.join(LINES[1:])}]".encode(), "quiz")).accepted

    settings = tiny(
        tmp_path,
        RUN,
        data={"prompt_data": "outside"},
        rollout={"num_rollout": 1, "rollout_deadline": 2.0},
    )
    with cheap_parts(Parts()):
        summary = asyncio.run(run_with(settings, wait_and_stop))
        assert summary["phase"] == "finished"
        asyncio.run(send())
        (tmp_path / "one.jsonl").write_text(LINES[0])
        assert command("produce")([RUN, str(tmp_path / "one.jsonl"), "--runs-dir", str(tmp_path / "runs")]) == 0
        assert command("resume")([RUN, "--runs-dir", str(tmp_path / "runs"), "--plain"]) == 0
    events = events_of(run.path)
    assert len(of(events, PromptOffered)) == GROUPS
    assert [event.reason for event in of(events, RunFinished)] == [FinishReason.INTERRUPTED, FinishReason.ALL_STEPS]
    assert {event.source.sender for event in of(events, PromptSubmitted)} == {"quiz", ""}


async def test_a_gateway_may_offer_on_the_run_s_server_and_append_nothing_else(tmp_path: Path) -> None:
    """Offer as during a start, or while the conductor is being replaced."""
    run = RunFolder.create(tmp_path, RUN)
    run.settings.write_text(f'[run]\nrun = "{RUN}"\n')
    server = await own_server(run.path, RUN)
    try:
        log = await JetStreamLog.open(server.address(Access.ROLES), RUN)
        await Participant(log, "launcher").append([made.started()])
        async with LiveRun(run) as live:
            replies = [await live.send(PROMPTS, "quiz") for _ in range(2)]
        offered = [recorded.envelope.event async for recorded in log.read(2)]
        assert [event.group for event in offered if isinstance(event, PromptOffered)] == list(replies[0].groups)
        assert replies[0] == replies[1]
        assert len(offered) == GROUPS
        gateway = await JetStreamLog.open(server.address(Access.GATEWAY), RUN, create=False, retry_s=1.0)
        with pytest.raises(StorageError):
            await Participant(gateway, "gateway").append([PromptWanted(total=1)])
        await gateway.close()
        await log.close()
    finally:
        await server.stop()
