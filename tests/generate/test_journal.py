"""One rollout's journal by itself: who may go on with a turn, and what a tool may take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from schemas.arrays import pack_tokens, unpack
from schemas.errors import Conflict, PlugPointError, ToolFailed
from schemas.event import Event
from schemas.rollouts import RolloutRequested, Sampling
from schemas.subjects import everything_about
from schemas.turns import ToolCall, TurnRecorded
from serve_apps.engine.scripted_engine import ScriptedEngine
from serve_apps.generate.desk import Desk
from serve_apps.generate.journal import Calling, Journal
from serve_apps.generate.record import Record
from serve_apps.generate.session import Session, current_session
from serve_apps.rollout import ChunkRule, Rollout
from slime_events.args_view import ArgsView
from slime_events.trajectory import Trajectory
from slime_events.worker import Worker
from storage.log import Append, Fence
from storage.memory_log import MemoryLog
from tests.simulation.parts import Letters

REQUEST = RolloutRequested(
    sample="g-s0", group="g", index=0, prompt=pack_tokens([65]), sampling=Sampling(max_new_tokens=8), seed=7
)
CALL = ToolCall("look_up", {"word": 1}, may_repeat=True)


async def journal_of(log: MemoryLog, engine: str) -> Journal:
    """As an engine that has just read what the log holds."""
    worker, known = Worker(log, "engine", engine), Trajectory(REQUEST.sample, REQUEST.prompt)
    record, scope = Record(REQUEST.sample, unpack), everything_about(log.run, REQUEST.sample)
    async for recorded in log.read(1, scope):
        record.apply(recorded.envelope.event)
        known.position = recorded.position

    async def say(events: Sequence[Event]) -> None:
        fence = Fence(scope, known.position)
        known.position = (await log.append([Append(worker.enclose(event), fence) for event in events]))[-1]

    scripted = ScriptedEngine()
    await scripted.start(1.0)
    desk = Desk(scripted, ChunkRule(4, 100.0), "rid", say, lambda: False)
    return Journal(Rollout(REQUEST, known, engine), record, desk)


async def test_of_two_engines_one_may_call_the_tool() -> None:
    log = MemoryLog("r")
    await Worker(log, "conductor").say([REQUEST])
    zombie, heir = await journal_of(log, "zombie"), await journal_of(log, "heir")
    assert isinstance(await heir.begin_call(CALL), Calling)
    with pytest.raises(Conflict):
        await zombie.begin_call(CALL)
    with pytest.raises(Conflict):
        await zombie.generate(unpack(REQUEST.prompt), REQUEST.sampling, None)
    assert len(log.records) == 2, "and whatever its function does then, it says nothing more"


async def test_an_engine_that_lost_the_rollout_ends_no_turn() -> None:
    log = MemoryLog("r")
    await Worker(log, "conductor").say([REQUEST])
    zombie = await journal_of(log, "zombie")
    calling = await zombie.begin_call(CALL)
    assert isinstance(calling, Calling)
    heir = await journal_of(log, "heir")
    again = await heir.begin_call(CALL)
    assert isinstance(again, Calling)
    assert again.index == calling.index + 1
    with pytest.raises(Conflict):
        await zombie.end_call(calling, "late", "", 0.0)
    await heir.end_call(again, "in time", "", 0.0)
    third = await (await journal_of(log, "third")).begin_call(CALL)
    assert not isinstance(third, Calling)
    assert third.event.result == "in time"


async def test_turns_side_by_side_say_so() -> None:
    log = MemoryLog("r")
    await Worker(log, "conductor").say([REQUEST])
    journal = await journal_of(log, "e")
    for at_once in (2, 1):
        same = (journal.generate(unpack(REQUEST.prompt), REQUEST.sampling, None) for _ in range(at_once))
        await asyncio.gather(*same)
    turns = [r.envelope.event for r in log.records if isinstance(r.envelope.event, TurnRecorded)]
    assert [turn.overlapping for turn in turns] == [True, True, False]


async def test_a_prompt_goes_on_from_the_newest_turn_that_it_holds_whole() -> None:
    """What it adds is observed; one that rewrites history goes on from nothing, and is observed whole."""
    log = MemoryLog("r")
    await Worker(log, "conductor").say([REQUEST])
    journal = await journal_of(log, "e")
    prompt = unpack(REQUEST.prompt)

    async def said(asked: Sequence[int]) -> TurnRecorded:
        await journal.generate(np.array(asked, np.int32), REQUEST.sampling, None)
        turn = log.records[-1].envelope.event
        assert isinstance(turn, TurnRecorded)
        return turn

    def goes_on(turn: TurnRecorded) -> tuple[int | None, list[int]]:
        return turn.extends, unpack(turn.observed).tolist()

    assert goes_on(await said(prompt)) == (None, prompt.tolist())
    first = [*prompt, *journal.turns[0][1].tokens]
    assert goes_on(await said([*first, 1, 2])) == (0, [1, 2])
    second = [*first, 1, 2, *journal.turns[1][1].tokens]
    assert goes_on(await said(second)) == (1, [])
    assert goes_on(await said([*first, 3])) == (0, [3]), "another way on from the first"
    rewritten = [first[0] + 1, *first[1:], 1, 2]
    assert goes_on(await said(rewritten)) == (None, rewritten)
    assert goes_on(await said(first[:-1])) == (None, first[:-1]), "it lacks the turn's last token"


async def session_of(log: MemoryLog) -> Session:
    await Worker(log, "conductor").say([REQUEST])
    journal = await journal_of(log, "e")
    return Session(journal, asyncio.get_running_loop(), Letters(), REQUEST.sampling, ArgsView({}))


async def test_a_tool_has_its_time() -> None:
    log = MemoryLog("r")
    session = await session_of(log)
    with pytest.raises(ToolFailed, match=r"sleep took longer than 0\.05 s"):
        await session.call(asyncio.sleep, {"delay": 10}, timeout_s=0.05)
    (turn,) = [r.envelope.event for r in log.records if isinstance(r.envelope.event, TurnRecorded)]
    assert "took longer" in turn.error


async def test_arguments_are_json_and_results_come_as_json_holds_them() -> None:
    session = await session_of(MemoryLog("r"))
    with pytest.raises(PlugPointError, match="have to be JSON values"):
        await session.call(str, {"object": object()})
    assert await session.call(divmod_of, {"a": 7, "b": 2}) == [3, 1], "a tuple is a list, now and after a crash"


def divmod_of(a: int, b: int) -> tuple[int, int]:
    return divmod(a, b)


async def test_messages_are_rendered_and_tokens_taken_as_they_are() -> None:
    session = await session_of(MemoryLog("r"))
    assert session.tokenize([{"role": "user", "content": "hi"}]) == session.tokenize("<user>hi")
    assert session.tokenize([5, 6]) == [5, 6]
    with pytest.raises(PlugPointError, match="empty prompt"):
        await session.generate("")
    with pytest.raises(PlugPointError, match="no session here"):
        current_session()
