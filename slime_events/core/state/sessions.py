"""`Session`: one rollout that an agent makes, folded from everything about its sample: a forest of turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from schemas.arrays import EMPTY_BYTES
from schemas.ids import session_name
from schemas.rollouts import RolloutCompleted, RolloutFailed, RolloutRequested
from schemas.sessions import SealReason, SessionOpened, SessionSealed
from schemas.subjects import everything_about
from schemas.turns import TurnBegun, TurnRecorded
from storage.log import Readable, Recorded

FOLDED = (
    *(RolloutRequested, RolloutCompleted, RolloutFailed),
    *(SessionOpened, SessionSealed, TurnBegun, TurnRecorded),
)
"""The event types that a session is made of."""


_Question = tuple[int | None, str, str]
"""What a turn continues, the digest of its messages, and its frame."""


class OpenTurn(NamedTuple):
    """A turn that was begun and is not recorded. number: its index. key: as its AgentTurn will have it. at: when, ns of
    Unix time.
    """

    number: int
    key: str
    at: int


@dataclass(slots=True)
class Session:
    """The session of a sample's newest attempt. Before it is opened, `opened` is None.

    position: of the newest event folded in, the fence of the next. opened_at, moved_at: ns of Unix time, the second of
    the newest event of it. turns: recorded, by index, without their request bodies. begun_at: of each turn. next_index:
    of the next turn; it goes on over the attempts. ended: the log has what its rollout came to.
    """

    sample: str
    position: int = 0
    request: RolloutRequested | None = None
    opened: SessionOpened | None = None
    opened_at: int = 0
    moved_at: int = 0
    turns: dict[int, TurnRecorded] = field(default_factory=dict)
    open: dict[int, OpenTurn] = field(default_factory=dict)
    begun_at: dict[int, int] = field(default_factory=dict)
    sealed: SessionSealed | None = None
    ended: RolloutCompleted | RolloutFailed | None = None
    next_index: int = 0
    _by_key: dict[str, list[int]] = field(default_factory=dict)
    _by_answer: dict[str, int] = field(default_factory=dict)
    _by_messages: dict[str, int] = field(default_factory=dict)
    _by_question: dict[_Question, int] = field(default_factory=dict)
    _extended: set[int] = field(default_factory=set)

    @property
    def attempt(self) -> int:
        """Of the request that it answers."""
        return 0 if self.request is None else self.request.attempt

    @property
    def name(self) -> str:
        """`<sample>.<attempt>`."""
        return session_name(self.sample, self.attempt)

    @property
    def takes_turns(self) -> bool:
        """Whether it was opened, and neither sealed nor ended."""
        return self.opened is not None and self.sealed is None and self.ended is None

    def apply(self, recorded: Recorded) -> None:
        """Fold the next event in. Events of other types are passed over."""
        event, at = recorded.envelope.event, recorded.envelope.at
        if recorded.position <= self.position:
            return
        self.position = recorded.position
        match event:
            case RolloutRequested():
                self._begin(event)
            case SessionOpened() if event.attempt == self.attempt:
                self.opened, self.opened_at = event, at
            case TurnBegun():
                self.open[event.index] = OpenTurn(event.index, event.asked, at)
                self.begun_at[event.index] = at
                self._by_key.setdefault(event.asked, []).append(event.index)
                self.next_index = max(self.next_index, event.index + 1)
            case TurnRecorded():
                self._record(event)
            case SessionSealed() if event.attempt == self.attempt:
                self.sealed = event
            case RolloutCompleted() | RolloutFailed():
                self.ended = event
            case _:
                return
        self.moved_at = at

    def _begin(self, event: RolloutRequested) -> None:
        self.request, self.opened, self.sealed, self.ended = event, None, None, None
        for known in (
            self.turns,
            self.open,
            self.begun_at,
            self._by_key,
            self._by_answer,
            self._by_messages,
            self._by_question,
        ):
            known.clear()
        self._extended.clear()

    def _record(self, event: TurnRecorded) -> None:
        self.open.pop(event.index, None)
        agent = event.agent
        if agent is None:
            return
        self.turns[event.index] = replace(event, agent=replace(agent, request=EMPTY_BYTES))
        self._by_answer[agent.answered] = max(event.index, self._by_answer.get(agent.answered, 0))
        self._by_messages |= dict.fromkeys((*agent.messages, agent.answered), event.index)
        self._by_question[_question(event)] = event.index
        if event.extends is not None:
            self._extended.add(event.extends)

    def asked(self, key: str) -> list[int]:
        """The turns of this key, oldest first, open or recorded."""
        return self._by_key.get(key, [])

    def answered(self, digest: str) -> int | None:
        """The newest turn whose messages and answer have this digest."""
        return self._by_answer.get(digest)

    def shares(self, digest: str) -> int | None:
        """The newest turn that has had messages of this digest, its answer's included."""
        return self._by_messages.get(digest)

    def path(self, index: int) -> list[TurnRecorded]:
        """The turns from a root to this one."""
        turns, at = list[TurnRecorded](), index
        while True:
            turns.append(self.turns[at])
            if (before := turns[-1].extends) is None:
                return turns[::-1]
            at = before

    def orphans(self) -> list[int]:
        """Turns that nothing continues and that were asked again later: their answers were lost. With turns that were
        begun and never recorded.
        """
        return sorted([*self.open, *(index for index in self._ends() if self._asked_again(index))])

    def leaves(self) -> list[int]:
        """Turns that nothing continues, and that are no orphans: the newest first, then the others, oldest first."""
        ends = [index for index in self._ends() if not self._asked_again(index)]
        return [*ends[-1:], *ends[:-1]]

    def _ends(self) -> Iterator[int]:
        return (index for index in sorted(self.turns) if index not in self._extended)

    def _asked_again(self, index: int) -> bool:
        """Whether a later turn is of the same messages in the same place."""
        return self._by_question[_question(self.turns[index])] > index


def _question(turn: TurnRecorded) -> _Question:
    assert turn.agent is not None
    return turn.extends, turn.agent.messages[-1] if turn.agent.messages else "", turn.agent.frame


class Limits(NamedTuple):
    """Seconds that a turn and a session may take, and that may pass without a turn."""

    turn_s: float
    session_s: float
    idle_s: float


def seal_due(
    session: Session, now: int, limits: Limits, *, wanted: bool, ready_at: int | None = 0
) -> SealReason | None:
    """Why a session that takes turns has to be sealed now; None where it has not. A turn under way keeps it from
    being idle, for as long as a turn may take. now: ns of Unix time. wanted: its group is still open. ready_at: since
    when the run has an engine; no limit begins before, and None stops them all.
    """
    if not wanted:
        return SealReason.OVER
    if ready_at is None:
        return None
    if now - max(session.opened_at, ready_at) >= limits.session_s * 1e9:
        return SealReason.TIME
    under_way = any(now - max(turn.at, ready_at) < limits.turn_s * 1e9 for turn in session.open.values())
    if not under_way and now - max(session.moved_at, ready_at) >= limits.idle_s * 1e9:
        return SealReason.IDLE
    return None


async def read_attempt(log: Readable, sample: str, attempt: int) -> Session:
    """The session of one attempt, as it was when the run asked for the next, or as it is now."""
    session = Session(sample)
    async for recorded in log.read(1, everything_about(log.run, sample)):
        event = recorded.envelope.event
        if isinstance(event, RolloutRequested) and event.attempt > attempt:
            break
        session.apply(recorded)
    return session


async def read_session(log: Readable, sample: str, known: Session | None = None) -> Session:
    """The session as the log has it now. known: as it was before, which is folded on."""
    session = known or Session(sample)
    async for recorded in log.read(session.position + 1, everything_about(log.run, sample)):
        session.apply(recorded)
    return session
