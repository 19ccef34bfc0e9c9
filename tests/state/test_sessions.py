"""The fold of an agent's session, and that of what waits for one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import pack, pack_log_probs, pack_tokens
from schemas.event import Event
from schemas.groups import RejectionCause
from schemas.rollouts import FailureKind, Maker, RolloutRequested
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from schemas.turns import AgentTurn, TurnBegun, TurnRecorded, TurnRole
from slime_events.core.sessions.board import SessionBoard, read_board
from slime_events.core.sessions.session import Limits, Session, read_session, seal_due
from tests import made

SAMPLE, GROUP = "train-0-1-s0", "train-0-1"
S = 10**9


def requested(attempt: int = 0, sample: str = SAMPLE) -> RolloutRequested:
    return made.requested(sample, attempt=attempt, maker=Maker.AGENT)


def opened(attempt: int = 0, key: str = "k", sample: str = SAMPLE) -> SessionOpened:
    return SessionOpened(sample=sample, attempt=attempt, group=GROUP, sender="team", key=key)


def begun(index: int, key: str = "") -> TurnBegun:
    return TurnBegun(sample=SAMPLE, index=index, role=TurnRole.ASSISTANT, asked=key or f"key{index}", engine="g")


def turn(index: int, extends: int | None, message: str, key: str = "", frame: str = "") -> TurnRecorded:
    agent = AgentTurn(
        key=key or f"key{index}",
        dialect="chat",
        call=f"turn-{index}-{SAMPLE}-s0",
        messages=(message,),
        answered=f"answer{index}",
        frame=frame,
        request=pack([123], "int8"),
    )
    return made.turn(
        SAMPLE,
        index=index,
        asked=agent.key,
        extends=extends,
        observed=pack_tokens([index]),
        length=1,
        tokens=pack_tokens([100 + index]),
        log_probs=pack_log_probs([-0.5]),
        agent=agent,
    )


def folded(events: Sequence[Event]) -> Session:
    session = Session(SAMPLE)
    for recorded in made.recorded(*events, apart=S):
        session.apply(recorded)
    return session


def test_an_answer_that_was_lost_and_asked_for_again_is_an_orphan() -> None:
    session = folded([requested(), opened(), turn(0, None, "a"), turn(1, None, "a"), turn(2, 1, "b")])
    assert (session.leaves(), session.orphans()) == ([2], [0])


def test_the_path_that_ended_last_is_the_first_of_several() -> None:
    session = folded([requested(), opened(), turn(0, None, "a"), turn(1, None, "other"), turn(2, 0, "b")])
    assert (session.leaves(), session.orphans()) == ([2, 1], [])
    assert [entry.index for entry in session.path(2)] == [0, 2]


def test_other_tools_make_another_question() -> None:
    session = folded([requested(), opened(), turn(0, None, "a", frame="f"), turn(1, None, "a", frame="g")])
    assert session.leaves() == [1, 0]


def test_a_turn_that_was_begun_and_not_recorded_is_open_and_then_an_orphan() -> None:
    session = folded([requested(), opened(), turn(0, None, "a"), begun(1, "key")])
    assert [(entry.number, entry.key, entry.at) for entry in session.open.values()] == [(1, "key", 3 * S)]
    assert (session.turns_with_key("key"), session.orphans(), session.leaves()) == ([1], [1], [0])


def test_another_attempt_begins_anew_but_for_the_numbers_of_its_turns() -> None:
    failed = made.failed(SAMPLE, FailureKind.AGENT, message="exit code 1", engine="g")
    sealed = SessionSealed(sample=SAMPLE, attempt=0, reason=SealReason.EXIT, gateway="g", exit_code=1)
    before = [requested(), opened(), begun(0), turn(0, None, "a"), sealed, failed]
    session = folded(before)
    assert not session.takes_turns
    session = folded([*before, requested(1)])
    assert (session.turns, session.takes_turns, session.next_index, session.name) == ({}, False, 1, f"{SAMPLE}.1")
    assert folded([*before, requested(1), opened(1)]).takes_turns
    assert not folded([*before, requested(1), opened(0, "late")]).takes_turns


@pytest.mark.parametrize(
    ("events", "seconds", "is_needed", "due"),
    [
        ([], 5, True, None),
        ([], 11, True, SealReason.IDLE),
        ([begun(0)], 11, True, None),
        ([begun(0)], 22, True, SealReason.IDLE),
        ([begun(0)], 31, True, SealReason.TIME),
        ([], 1, False, SealReason.OVER),
        ([turn(0, None, "a")], 10.5, True, None),
        ([turn(0, None, "a")], 12, True, SealReason.IDLE),
    ],
)
def test_when_a_session_is_sealed(events: list[Event], seconds: float, is_needed: bool, due: SealReason | None) -> None:
    session = folded([requested(), opened(), *events])
    now = session.opened_at + int(seconds * S)
    assert seal_due(session, now, Limits(20, 30, 10), is_needed=is_needed) is due


@pytest.mark.parametrize(
    ("ready_s", "seconds", "is_needed", "due"),
    [
        (None, 100, True, None),
        (None, 1, False, SealReason.OVER),
        (95, 100, True, None),
        (85, 100, True, SealReason.IDLE),
        (65, 100, True, SealReason.TIME),
    ],
)
def test_no_limit_begins_before_an_engine_is_ready(
    ready_s: float | None, seconds: float, is_needed: bool, due: SealReason | None
) -> None:
    session = folded([requested(), opened()])
    now = session.opened_at + int(seconds * S)
    ready_at = None if ready_s is None else session.opened_at + int(ready_s * S)
    assert seal_due(session, now, Limits(20, 30, 10), is_needed=is_needed, ready_at=ready_at) is due


@given(st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 2)), max_size=12))
def test_every_recorded_turn_is_in_a_path_or_an_orphan(shape: list[tuple[int, int]]) -> None:
    """Whatever grows: each turn is an orphan or an ancestor of a leaf, and no orphan has come to anything."""
    turns = [
        turn(index, parent if 0 <= parent < index else None, f"m{number}")
        for index, (parent, number) in enumerate(shape)
    ]
    session = folded([requested(), opened(), *turns])
    used = {entry.index for leaf in session.leaves() for entry in session.path(leaf)}
    assert used.isdisjoint(session.orphans())
    assert used | set(session.orphans()) == set(session.turns)
    assert len(set(session.leaves())) == len(session.leaves())
    for orphan in session.orphans():
        same = [entry for entry in turns[orphan + 1 :] if entry.extends == turns[orphan].extends]
        assert any(
            entry.agent and turns[orphan].agent and entry.agent.messages == turns[orphan].agent.messages
            for entry in same
        )


def _question(recorded: TurnRecorded) -> object:
    return recorded.extends, recorded.agent and recorded.agent.messages


async def test_it_is_read_on_from_where_it_was() -> None:
    log = await made.log(requested(), opened())
    session = await read_session(log, SAMPLE)
    assert (session.position, session.takes_turns) == (2, True)
    await made.say(log, begun(0), requested(sample="train-0-2-s0"))
    again = await read_session(log, SAMPLE, session)
    assert (again is session, again.position, list(again.open)) == (True, 3, [0])


async def test_what_the_board_offers() -> None:
    board, other = SessionBoard(), "train-0-2-s0"
    log = await made.log(requested(), requested(sample=other), opened())
    await read_board(log, board)
    assert (list(board.waiting), list(board.open), board.is_undecided(SAMPLE)) == ([other], [SAMPLE], True)
    assert board.by_key["team", "k"] == opened()
    assert (board.next(GROUP), board.next().sample if board.next() else "") == (None, other)
    sealed = SessionSealed(sample=SAMPLE, attempt=0, reason=SealReason.IDLE, gateway="g")
    rejected = made.rejected("train-0-2", RejectionCause.STALE, reason="old")
    await made.say(log, sealed, requested(1), rejected)
    await read_board(log, board)
    assert (list(board.waiting), list(board.open), board.is_undecided(other)) == ([SAMPLE], [], False)
    assert (board.position, board.waiting[SAMPLE].attempt) == (6, 1)
