"""Lineage over a run whose rollouts agents make: sessions, turns and paths lead to samples, samples back to them."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Console

from schemas.arrays import unpack
from schemas.batches import BatchSealed
from schemas.event import Event
from schemas.rollouts import RolloutCompleted
from schemas.runs import RunFinished
from schemas.sessions import Credit, SealReason, SessionSealed
from schemas.turns import RootReason, TurnBegun
from slime_events.algorithms.credit import CreditRule
from slime_events.analysis.lineage.lineage import Kind, Lineage, LineageQuery
from slime_events.analysis.lineage.picture import svg
from slime_events.analysis.lineage.resolve import NEWEST, lineage
from slime_events.analysis.query import tables_of
from slime_events.analysis.views.read_run import read_whole_run
from slime_events.app.cli.commands.show import Question, view_of
from slime_events.app.cli.render.lineage_text import lineage_text
from slime_events.app.launch.view import screen
from slime_events.core.run.run_reader import OpenedRun
from slime_events.core.training.batch_columns import LOSS_MASKS, make_column
from slime_events.model.agent_session import AgentSession
from tests import made
from tests.agents.stage import ASKED, Stage, ask, seal
from tests.lineage.opened import opened
from tests.scripted_engine import Script

CLIENT = "small-agent/1.0"


async def _recorded(stage: Stage) -> OpenedRun:
    """A step: one session of two questions after one answer, a lost answer and a sub-agent; the others of one turn, one
    of them after a program that ended with 1.
    """
    async with stage.simulation, stage.gateway(credit=CreditRule(Credit.DISCOUNTED, 0.5)) as client:
        client.headers["user-agent"] = f"{CLIENT}\x07"
        stage.simulation.start_engine(Script(chunk=4))
        broken = await stage.open(client)
        await ask(client, broken, ASKED)
        await seal(client, broken, exit_code=1)
        first = await stage.open(client)
        reply = await ask(client, first, ASKED)
        for question in ("one way", "another way", "another way"):
            await ask(client, first, [*ASKED, reply, {"role": "user", "content": question}])
        await ask(client, first, [{"role": "system", "content": "Be terse."}, *ASKED])
        await seal(client, first, reward=1.0, rewards={"4": 0.25})
        while not stage.simulation.events(RunFinished):
            opened_session = await stage.open(client, wait_s=1)
            if opened_session["status"] == 201:
                await ask(client, opened_session, ASKED)
                await seal(client, opened_session, reward=0.0)
    return made.opened(stage.simulation.log)


async def _of(run: OpenedRun, kind: Kind, value: object) -> Lineage:
    return await lineage(run, LineageQuery(kind=kind, value=str(value)))


async def test_a_version_leads_to_sessions_and_a_sample_back(tmp_path: Path) -> None:
    stage = Stage(tmp_path, steps=1)
    run = await _recorded(stage)
    answer = await _of(run, Kind.VERSION, NEWEST)
    assert {sample.sample for sample in answer.samples} == {
        name for session in answer.sessions for name in session.samples
    }
    assert {session.source for session in answer.sessions} == {"team"}
    assert {session.clients for session in answer.sessions} == {(CLIENT,)}, "without what no terminal should be sent"
    assert [session.exit_code for session in answer.sessions if session.failure] == [1]
    whole = next(session for session in answer.sessions if len(session.turns) > 1)
    assert (whole.dialects, whole.roots) == (("chat",), (RootReason.FIRST, RootReason.SUBAGENT))
    assert (whole.sealed, whole.reward, whole.rewards) == (SealReason.REWARD, 1.0, {4: 0.25})
    assert (whole.leaves, whole.orphans) == ((4, 1, 3), (2,))
    assert [path.turns for path in whole.paths] == [(4,), (0, 1), (0, 3)]
    name = whole.sample
    trained = [(turn.sample, turn.weight, turn.orphan) for turn in whole.turns]
    assert trained == [
        (f"{name}-1", 0.5, False),
        (f"{name}-1", 1.0, False),
        (None, None, True),
        (f"{name}-2", 1.0, False),
        (name, 1.0, False),
    ]
    _check_tokens(stage, answer.sessions)
    for path in whole.paths:
        back = await _of(run, Kind.SAMPLE, path.sample)
        assert whole in back.sessions
        assert back.session_of(back.samples[0]) == whole
        (joined,) = [sample for sample in answer.samples if sample.sample == path.sample]
        assert back.samples == (joined,)
    assert whole.session in lineage_text(answer)
    assert whole.session in svg(answer)
    assert msgspec.json.decode(msgspec.json.encode(answer))["sessions"][0]["source"] == "team"


def _check_tokens(stage: Stage, sessions: tuple[AgentSession, ...]) -> None:
    """Trained tokens of a sample are those of the turns that say so."""
    for completed in stage.simulation.events(RolloutCompleted):
        own = [turn.tokens for session in sessions for turn in session.turns if turn.sample == completed.sample]
        if own:
            mask = completed.loss_mask
            assert sum(own) == (completed.length if mask is None else int(unpack(mask).sum()))


async def test_a_batch_with_masks_of_its_own_is_noted(tmp_path: Path) -> None:
    run = await _recorded(Stage(tmp_path, steps=1))
    assert (await _of(run, Kind.STEP, 0)).notes == ()
    events_: list[Event] = []
    async for recorded in run.log.read():
        event = recorded.envelope.event
        if isinstance(event, BatchSealed):
            masks = [[1] * sample.length for sample in (await _of(run, Kind.STEP, 0)).samples]
            event = msgspec.structs.replace(event, columns=(make_column(LOSS_MASKS, masks),))
        events_.append(event)
    noted = await opened(events_, run.log.run)
    assert [note.startswith("step 0:") for note in (await _of(noted, Kind.STEP, 0)).notes] == [True]


async def test_a_query_finds_the_same_sessions(tmp_path: Path) -> None:
    run = await _recorded(Stage(tmp_path, steps=1))
    answer = await _of(run, Kind.VERSION, NEWEST)
    query = (
        "SELECT session, source, sealed_by, exit_code, reward, turns, roots, leaves, orphans, samples, trained_version "
        "FROM sessions ORDER BY position"
    )
    turns = 'SELECT session, "index", extends, root, drift, dialect, client, orphan FROM turns ORDER BY position'
    async with tables_of(run) as tables:
        rows, turn_rows = (await tables.sql(query)).rows(), (await tables.sql(turns)).rows()
    assert rows == [
        (
            *(
                session.session,
                session.source,
                session.sealed,
                session.exit_code,
                session.reward,
                len(session.turns),
                list(session.roots),
            ),
            *(
                list(session.leaves),
                list(session.orphans),
                sorted(session.samples) or None,
                1 if session.samples else None,
            ),
        )
        for session in answer.sessions
    ]
    expected = [
        (session.session, turn.turn, turn.extends, turn.root, turn.drift, turn.dialect, turn.client, turn.orphan)
        for session in answer.sessions
        for turn in session.turns
    ]
    assert sorted(turn_rows) == sorted(expected)


@contextlib.asynccontextmanager
async def an_open_turn(
    tmp_path: Path,
) -> AsyncIterator[tuple[Stage, httpx.AsyncClient, dict[str, Any], asyncio.Task[Any]]]:
    """A stage, a client of its gateway, and a session of it with a turn under way, which the task waits for."""
    stage = Stage(tmp_path, steps=1)
    async with stage.simulation, stage.gateway() as client:
        stage.simulation.start_engine(Script(chunk=1, seconds_per_chunk=0.05))
        session = await stage.open(client)
        asking = asyncio.create_task(ask(client, session, ASKED))
        await stage.simulation.until(TurnBegun)
        yield stage, client, session, asking


async def test_an_open_session_is_told_with_its_open_turn(tmp_path: Path) -> None:
    async with an_open_turn(tmp_path) as (stage, client, session, asking):
        run = made.opened(stage.simulation.log)
        (open_session,) = (await _of(run, Kind.SAMPLE, session["sample"])).sessions
        assert (open_session.sealed, open_session.paths, [turn_.turn for turn_ in open_session.open]) == (None, (), [0])
        await asking
        await seal(client, session, exit_code=0)
        await stage.simulation.until(SessionSealed)


async def test_a_look_at_the_run_names_open_sessions(tmp_path: Path) -> None:
    async with an_open_turn(tmp_path) as (stage, client, session, asking):
        sessions = (await view_of(stage.simulation.log, Question(), unpack)).facts["agents"]["sessions"]
        ((name, [turn]),) = [(fact["session"], fact["turns"]) for fact in sessions]
        assert (name, turn["turn"], 0 <= turn["age_s"] <= sessions[0]["age_s"]) == (session["session"], 0, True)
        _, progress, _ = await read_whole_run(stage.simulation.log)
        drawn = Console(file=io.StringIO(), width=200)
        drawn.print(screen(progress, 1, seconds=1.0))
        assert "sessions open 1" in drawn.file.getvalue()  # type: ignore[attr-defined]
        await asking
        await seal(client, session, reward=1.0, rewards={"0": 0.5})
        view = await view_of(stage.simulation.log, Question(), unpack)
        assert view.facts["agents"]["sessions"] == []
        view = await view_of(stage.simulation.log, Question(sample=session["sample"]), unpack)
        assert view.facts["sessions"][0]["turns"][0]["sample"] == session["sample"]
        assert session["session"] in view.text
