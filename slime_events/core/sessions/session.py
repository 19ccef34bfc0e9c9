"""`Session`: a rollout that an agent makes as a forest of turns, folded from all events about its sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from msgspec.structs import replace

from schemas.arrays import EMPTY_BYTES
from schemas.doc import doc
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
"""The event types that a session is folded from."""


_Question = tuple[int | None, str, str]
"""Identity of a turn's request: the turn that it continues, the digest of its messages, and its frame."""


class OpenTurn(NamedTuple):
    """A turn that has begun and is not recorded."""

    number: Annotated[int, doc("index of the turn")]
    key: Annotated[str, doc("digest of its request, as in its AgentTurn")]
    at: Annotated[int, doc("when it began, Unix nanoseconds")]


@dataclass(slots=True)
class Session:
    """The session of a sample's newest attempt."""

    sample: str
    position: Annotated[int, doc("position of the newest event folded in, which is the fence of the next")] = 0
    request: Annotated[RolloutRequested | None, doc("newest request of the sample")] = None
    opened: Annotated[SessionOpened | None, doc("None: not open yet")] = None
    opened_at: Annotated[int, doc("Unix nanoseconds")] = 0
    moved_at: Annotated[int, doc("time of the newest event of the session, Unix nanoseconds")] = 0
    turns: Annotated[dict[int, TurnRecorded], doc("recorded turns by index, without their request bodies")] = field(
        default_factory=dict
    )
    open: Annotated[dict[int, OpenTurn], doc("turns that are not recorded, by index")] = field(default_factory=dict)
    begun_at: Annotated[dict[int, int], doc("index of a turn to its beginning, Unix nanoseconds")] = field(
        default_factory=dict
    )
    sealed: SessionSealed | None = None
    ended: Annotated[RolloutCompleted | RolloutFailed | None, doc("result of the rollout")] = None
    next_index: Annotated[int, doc("index of the next turn, counted over all attempts")] = 0
    _by_key: dict[str, list[int]] = field(default_factory=dict)
    _by_answer: dict[str, int] = field(default_factory=dict)
    _by_messages: dict[str, int] = field(default_factory=dict)
    _by_question: dict[_Question, int] = field(default_factory=dict)
    _extended: set[int] = field(default_factory=set)

    @property
    def attempt(self) -> int:
        """The attempt of its request."""
        return 0 if self.request is None else self.request.attempt

    @property
    def name(self) -> str:
        """`<sample>.<attempt>`."""
        return session_name(self.sample, self.attempt)

    @property
    def takes_turns(self) -> bool:
        """Whether the session is open: opened, and neither sealed nor ended."""
        return self.opened is not None and self.sealed is None and self.ended is None

    def apply(self, recorded: Recorded) -> None:
        """Fold the next event in. Events of further types are ignored."""
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
        for index in (
            self.turns,
            self.open,
            self.begun_at,
            self._by_key,
            self._by_answer,
            self._by_messages,
            self._by_question,
        ):
            index.clear()
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

    def turns_with_key(self, key: str) -> list[int]:
        """Return the open and recorded turns with this key, oldest first."""
        return self._by_key.get(key, [])

    def answered(self, digest: str) -> int | None:
        """Return the newest turn whose messages and answer have this digest."""
        return self._by_answer.get(digest)

    def shares(self, digest: str) -> int | None:
        """Return the newest turn with a message of this digest, including its answer."""
        return self._by_messages.get(digest)

    def path(self, index: int) -> list[TurnRecorded]:
        """Return the turns from a root to this one."""
        turns, at = list[TurnRecorded](), index
        while True:
            turns.append(self.turns[at])
            if (before := turns[-1].extends) is None:
                return turns[::-1]
            at = before

    def orphans(self) -> list[int]:
        """Return turns whose answers were lost: unrecorded ones, and leaves whose request was repeated later."""
        return sorted([*self.open, *(index for index in self._ends() if self._is_repeated(index))])

    def leaves(self) -> list[int]:
        """Return the leaves of the forest that are not orphans: the newest first, then the rest, oldest first."""
        ends = [index for index in self._ends() if not self._is_repeated(index)]
        return [*ends[-1:], *ends[:-1]]

    def _ends(self) -> Iterator[int]:
        return (index for index in sorted(self.turns) if index not in self._extended)

    def _is_repeated(self, index: int) -> bool:
        """Return whether a later turn has the same messages in the same place."""
        return self._by_question[_question(self.turns[index])] > index


def _question(turn: TurnRecorded) -> _Question:
    assert turn.agent is not None
    return turn.extends, turn.agent.messages[-1] if turn.agent.messages else "", turn.agent.frame


class Limits(NamedTuple):
    """Time limits of a session, in seconds."""

    turn_s: Annotated[float, doc("duration of a turn")]
    session_s: Annotated[float, doc("duration of a session")]
    idle_s: Annotated[float, doc("time without a turn")]


def seal_due(
    session: Session, now: int, limits: Limits, *, is_needed: bool, ready_at: int | None = 0
) -> SealReason | None:
    """Return why an open session must be sealed now; None if it must not.

    A turn in progress keeps a session from being idle, up to the limit of a turn. now: Unix nanoseconds. is_needed:
    the run is not over and the group is open. ready_at: since when the run has an engine, Unix nanoseconds; limits
    count from it, and None suspends them.
    """
    if not is_needed:
        return SealReason.OVER
    if ready_at is None:
        return None
    if now - max(session.opened_at, ready_at) >= limits.session_s * 1e9:
        return SealReason.TIME
    in_progress = any(now - max(turn.at, ready_at) < limits.turn_s * 1e9 for turn in session.open.values())
    if not in_progress and now - max(session.moved_at, ready_at) >= limits.idle_s * 1e9:
        return SealReason.IDLE
    return None


async def read_attempt(log: Readable, sample: str, attempt: int) -> Session:
    """Return the session of an attempt, up to the request of the next attempt."""
    session = Session(sample)
    async for recorded in log.read(1, everything_about(log.run, sample)):
        event = recorded.envelope.event
        if isinstance(event, RolloutRequested) and event.attempt > attempt:
            break
        session.apply(recorded)
    return session


async def read_session(log: Readable, sample: str, session: Session | None = None) -> Session:
    """Return the session with all events in the log. session: an earlier state of it, which is updated."""
    session = session or Session(sample)
    async for recorded in log.read(session.position + 1, everything_about(log.run, sample)):
        session.apply(recorded)
    return session
