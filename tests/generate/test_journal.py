"""Test one rollout's journal by itself: who may continue a turn, and what a tool may take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from unittest.mock import AsyncMock

import numpy as np
import pytest

from schemas.arrays import unpack
from schemas.errors import (
    Conflict,
    EngineError,
    GenerateDiffers,
    PlugPointError,
    StorageError,
    ToolFailed,
    ToolInterrupted,
)
from schemas.event import Event
from schemas.rollouts import RolloutProgressed, Sampling, StopReason
from schemas.subjects import everything_about
from schemas.turns import ToolCall, TurnBegun, TurnRecorded, TurnRole
from serve_apps.rollouts.generate.journal import InFlight, Journal, TurnLog, _seed
from serve_apps.rollouts.generate.session import Session, current_session
from serve_apps.rollouts.rollout import ChunkRule, Rollout, RolloutContext, Suspended
from slime_events.core.run.participant import Participant
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.plugins.args_view import ArgsView
from storage.log import Append, Fence
from storage.memory_log import MemoryLog
from tests import made
from tests.scripted_engine import Script, ScriptedEngine
from tests.simulation.parts import Letters

REQUEST = made.requested(prompt=[65], seed=7)
CALL = ToolCall("look_up", {"word": 1}, may_repeat=True)
SEEDS = [7, 1207947808, 1549940327, 442239123]


async def journal_of(log: MemoryLog, engine: str, script: Script | None = None, *, suspended: bool = False) -> Journal:
    """Return the journal of an engine that has just read what the log holds."""
    worker, trajectory = Participant(log, "engine", engine), Trajectory(REQUEST.sample, REQUEST.prompt)
    turn_log, scope = TurnLog(REQUEST.sample, unpack), everything_about(log.run, REQUEST.sample)
    async for recorded in log.read(1, scope):
        turn_log.apply(recorded.envelope.event)
        trajectory.position = recorded.position

    async def append(events: Sequence[Event]) -> int:
        fence = Fence(scope, trajectory.position)
        trajectory.position = (await log.append([Append(worker.enclose(event), fence) for event in events]))[-1]
        return trajectory.position

    scripted = ScriptedEngine(script)
    await scripted.start(1.0)
    context = RolloutContext(scripted.generate, ChunkRule(4, 100.0), "rid", append, lambda: suspended, AsyncMock())
    return Journal(Rollout(REQUEST, trajectory, engine), turn_log, context)


async def test_of_two_engines_one_may_call_the_tool() -> None:
    log = await made.log(REQUEST)
    zombie, heir = await journal_of(log, "zombie"), await journal_of(log, "heir")
    assert isinstance(await heir.begin_call(CALL), InFlight)
    with pytest.raises(Conflict):
        await zombie.begin_call(CALL)
    with pytest.raises(Conflict):
        await zombie.generate(unpack(REQUEST.prompt), REQUEST.sampling, None)
    assert len(log.records) == 2, "and whatever its function does then, it says nothing more"


async def test_an_engine_that_lost_the_rollout_ends_no_turn() -> None:
    log = await made.log(REQUEST)
    zombie = await journal_of(log, "zombie")
    calling = await zombie.begin_call(CALL)
    assert isinstance(calling, InFlight)
    heir = await journal_of(log, "heir")
    again = await heir.begin_call(CALL)
    assert isinstance(again, InFlight)
    assert again.index == calling.index + 1
    with pytest.raises(Conflict):
        await zombie.end_call(calling, "late", "", 0.0)
    await heir.end_call(again, "in time", "", 0.0)
    third = await (await journal_of(log, "third")).begin_call(CALL)
    assert not isinstance(third, InFlight)
    assert third.event.result == "in time"


async def test_turns_side_by_side_say_so() -> None:
    log = await made.log(REQUEST)
    journal = await journal_of(log, "e")
    for count in (2, 1):
        same = (journal.generate(unpack(REQUEST.prompt), REQUEST.sampling, None) for _ in range(count))
        await asyncio.gather(*same)
    turns = [r.envelope.event for r in log.records if isinstance(r.envelope.event, TurnRecorded)]
    assert [turn.overlapping for turn in turns] == [True, True, False]


async def test_a_prompt_goes_on_from_the_newest_turn_that_it_holds_whole() -> None:
    """Observe what the prompt adds; one that rewrites history continues nothing, and is observed whole."""
    log = await made.log(REQUEST)
    journal = await journal_of(log, "e")
    prompt = unpack(REQUEST.prompt)

    async def turn_for(tokens: Sequence[int]) -> TurnRecorded:
        await journal.generate(np.array(tokens, np.int32), REQUEST.sampling, None)
        turn = log.records[-1].envelope.event
        assert isinstance(turn, TurnRecorded)
        return turn

    def goes_on(turn: TurnRecorded) -> tuple[int | None, list[int]]:
        return turn.extends, unpack(turn.observed).tolist()

    assert goes_on(await turn_for(prompt)) == (None, prompt.tolist())
    first = [*prompt, *journal.turns[0][1].tokens]
    assert goes_on(await turn_for([*first, 1, 2])) == (0, [1, 2])
    second = [*first, 1, 2, *journal.turns[1][1].tokens]
    assert goes_on(await turn_for(second)) == (1, [])
    assert goes_on(await turn_for([*first, 3])) == (0, [3]), "another way on from the first"
    rewritten = [first[0] + 1, *first[1:], 1, 2]
    assert goes_on(await turn_for(rewritten)) == (None, rewritten)
    assert goes_on(await turn_for(first[:-1])) == (None, first[:-1]), "it lacks the turn's last token"


async def begun_log() -> MemoryLog:
    log = await made.log(REQUEST)
    return log


async def test_seeds_are_the_sample_s_and_others_where_the_same_is_asked_again() -> None:
    journal = await journal_of(await begun_log(), "e")
    prompt = unpack(REQUEST.prompt)
    tokens_by_turn = [
        (await journal.generate(prompt, REQUEST.sampling, seed)).tokens.tolist() for seed in (None, None, None, 3)
    ]
    assert tokens_by_turn[0] == [ScriptedEngine().token(REQUEST.seed, 1 + place) for place in range(8)]
    assert tokens_by_turn[3] == [ScriptedEngine().token(3, 1 + place) for place in range(8)]
    assert len({tuple(tokens) for tokens in tokens_by_turn}) == 4


def test_seeds_stay_what_they_were() -> None:
    """Use 31 bits, as engines take them. A rollout that another version of this code continues asks the same."""
    assert [_seed(7, occurrence) for occurrence in range(4)] == SEEDS
    assert all(0 <= _seed(seed, 1) < 2**31 for seed in range(64))


async def test_a_turn_says_what_its_engine_said() -> None:
    log = await begun_log()
    journal = await journal_of(log, "e", Script(chunk=2))
    longer, shorter = (Sampling(max_new_tokens=count) for count in (8, 5))
    engine = ScriptedEngine()
    for number, sampling in enumerate((longer, shorter)):
        ended = await journal.generate(unpack(REQUEST.prompt), sampling, None)
        turn = log.records[-1].envelope.event
        assert isinstance(turn, TurnRecorded)
        assert turn == ended.event
        assert (turn.index, turn.stop, turn.text) == (number, StopReason.LENGTH, engine.text(ended.tokens))
        assert len(ended.tokens) == sampling.max_new_tokens
    calling = await journal.begin_call(CALL)
    assert isinstance(calling, InFlight)
    assert (calling.index, (await journal.end_call(calling, "found", "", 0.5)).event.index) == (2, 2)


async def test_what_an_heir_finds_is_counted_and_answers_once() -> None:
    log = await begun_log()
    prompt = unpack(REQUEST.prompt)
    first = await journal_of(log, "e", Script(chunk=2))
    live = await first.generate(prompt, REQUEST.sampling, None)
    assert first._turn_log.generated == 8
    heir = await journal_of(log, "heir")
    assert heir._turn_log.generated == 8
    other = Sampling(max_new_tokens=8, temperature=0.5)
    with pytest.raises(GenerateDiffers):
        await heir.generate(prompt, other, None)
    third = await journal_of(log, "third")
    again = await third.generate(prompt, REQUEST.sampling, None)
    assert again.tokens.tolist() == live.tokens.tolist()
    fresh = await third.generate(prompt, REQUEST.sampling, None)
    assert fresh.event.index == 1


async def test_a_rollout_that_is_to_rest_begins_nothing() -> None:
    log = await begun_log()
    journal = await journal_of(log, "e", suspended=True)
    with pytest.raises(Suspended):
        await journal.generate(unpack(REQUEST.prompt), REQUEST.sampling, None)
    with pytest.raises(Suspended):
        await (await journal_of(log, "e", suspended=True)).begin_call(CALL)
    assert len(log.records) == 1


async def test_the_first_failure_is_that_of_all_that_follows() -> None:
    log = await begun_log()
    journal = await journal_of(log, "e", Script(refused={"rid": "no room"}))
    with pytest.raises(EngineError):
        await journal.generate(unpack(REQUEST.prompt), REQUEST.sampling, None)
    with pytest.raises(EngineError):
        await journal.begin_call(CALL)
    failure = journal.failure
    journal.close()
    assert isinstance(failure, EngineError)
    assert journal.failure is failure
    assert len(log.records) == 1
    ended = await journal_of(log, "e")
    ended.close()
    with pytest.raises(PlugPointError):
        await ended.begin_call(CALL)


@pytest.mark.parametrize(("before", "now", "again"), [(True, True, True), (True, False, False), (False, True, False)])
async def test_a_call_that_was_in_flight_is_repeated_where_both_say_that_it_may_be(
    before: bool, now: bool, again: bool
) -> None:
    log = await begun_log()
    await (await journal_of(log, "lost")).begin_call(ToolCall("look_up", {"word": 1}, may_repeat=before))
    heir = await journal_of(log, "heir")
    call = ToolCall("look_up", {"word": 1}, may_repeat=now)
    if again:
        assert isinstance(await heir.begin_call(call), InFlight)
        return
    with pytest.raises(ToolInterrupted):
        await heir.begin_call(call)


def begun(index: int, *, overlapping: bool = False) -> TurnBegun:
    return TurnBegun(
        sample="g-s0", index=index, role=TurnRole.ASSISTANT, asked="same", engine="e", overlapping=overlapping
    )


def chunk(turn: int, start: int, *tokens: int) -> RolloutProgressed:
    return made.progressed("g-s0", tokens, start=start, log_probs=[0.0] * len(tokens), turn=turn)


def test_of_a_turn_that_was_begun_again_the_last_is_gone_on_with() -> None:
    turn_log = TurnLog("g-s0", unpack)
    for event in (begun(0), chunk(0, 0, 1, 2), begun(1), chunk(1, 0, 3), chunk(1, 1, 4)):
        turn_log.apply(event)
    assert (turn_log.generated, turn_log.next_index) == (4, 2)
    claimed = turn_log.claim("same")
    assert isinstance(claimed, InFlight)
    assert (claimed.index, claimed.draft.tokens.tolist()) == (1, [3, 4])
    assert turn_log.claim("same") is None


def test_the_next_turn_comes_behind_one_that_was_recorded_at_once() -> None:
    turn_log = TurnLog("g-s0", unpack)
    turn_log.apply(made.turn("g-s0", index=3, role=TurnRole.TOOL, asked="a"))
    assert turn_log.next_index == 4
    assert turn_log.new_turn("b").index == 4
    assert turn_log.next_index == 5


def test_tokens_of_a_turn_lie_end_to_end() -> None:
    turn_log = TurnLog("g-s0", unpack)
    turn_log.apply(chunk(0, 0, 1, 2))
    for start in (0, 1, 3):
        with pytest.raises(StorageError):
            turn_log.apply(chunk(0, start, 5))


@pytest.mark.parametrize("overlapping", [True, False])
def test_turns_that_overlapped_may_come_in_another_order(overlapping: bool) -> None:
    turn_log = TurnLog("g-s0", unpack)
    turn_log.apply(begun(0, overlapping=overlapping))
    if overlapping:
        assert turn_log.claim("other") is None
    else:
        with pytest.raises(GenerateDiffers):
            turn_log.claim("other")


async def session_of(log: MemoryLog) -> Session:
    await Participant(log, "conductor").append([REQUEST])
    journal = await journal_of(log, "e")
    return Session(journal, Letters(), REQUEST.sampling, ArgsView({}))


async def test_a_tool_has_its_time() -> None:
    log = MemoryLog("r")
    session = await session_of(log)
    with pytest.raises(ToolFailed, match=r"sleep took longer than 0\.05 s"):
        await session.call(asyncio.sleep, {"delay": 10}, timeout_s=0.05)
    (turn,) = [r.envelope.event for r in log.records if isinstance(r.envelope.event, TurnRecorded)]
    assert "took longer" in turn.error


async def test_arguments_are_json_and_results_come_as_json_holds_them() -> None:
    session = await session_of(MemoryLog("r"))
    with pytest.raises(PlugPointError, match="must be JSON values"):
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
