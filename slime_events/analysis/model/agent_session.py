"""`AgentSession`: one try of an agent at a rollout, as the log has it: who opened it, its turns, and what came of them.

session -> turns (a forest) -> paths -> samples: `AgentSession.paths`, in the order of `session.sealed`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from schemas.ids import session_name, sibling_id
from schemas.rollouts import RolloutFailed, StopReason
from schemas.sessions import Credit, SealReason, SessionOpened, SessionSealed
from schemas.turns import RootReason, TurnBegun, TurnRecorded
from slime_events.analysis.model.lookup import LogPart
from slime_events.core.credit import CreditedPath, CreditRule, credited_paths
from storage.log import Recorded

ENDED = (SessionOpened, TurnRecorded, SessionSealed, RolloutFailed)
"""The types that an ended session is folded from, about the sample that was asked for; an open one of `TurnBegun` too.
"""


class AgentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. dialect, client: the API that it was asked in, and what the agent's HTTP client calls itself. extends:
    the turn that it goes on from; root: why it goes on from none; then nearest: the turn it has most in common with,
    drift: the first token that differs. rule: what made the prompt's ids. prompt: new tokens of its prompt. tokens:
    generated. sample: that its tokens are trained in, each counting `weight`; null where they never are. orphan:
    its answer was lost and asked for again.
    """

    turn: int
    dialect: str
    client: str = ""
    extends: int | None = None
    root: RootReason | None = None
    nearest: int | None = None
    drift: int | None = None
    rule: str = ""
    prompt: int = 0
    tokens: int = 0
    versions: tuple[int, ...] = ()
    stop: StopReason | None = None
    seconds: float = 0.0
    sample: str | None = None
    weight: float | None = None
    orphan: bool = False


class OpenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that was begun and has not ended."""

    turn: int
    begun_at: int


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """What a sample is made of: turns from a root to the one that ended it."""

    sample: str
    turns: tuple[int, ...]


class AgentSession(msgspec.Struct, frozen=True, kw_only=True):
    """session: its name, `<sample>.<attempt>`. source: whose token its harness had. sealed: why it ended, null while it
    is open. reward, rewards: of the harness, `rewards` of single paths by the turn that ended them. credit, discount:
    the rule by which tokens are trained. leaves: turns that ended a path. paths: those that became samples. orphans:
    turns whose answers were lost, those that never ended included. failure: why nothing came of it.
    """

    session: str
    sample: str
    group: str
    run: str
    attempt: int
    source: str
    opened_at: int
    sealed_at: int | None = None
    sealed: SealReason | None = None
    exit_code: int | None = None
    reward: float | None = None
    rewards: dict[int, float] = {}
    credit: Credit | None = None
    discount: float = 1.0
    turns: tuple[AgentTurn, ...] = ()
    open: tuple[OpenTurn, ...] = ()
    leaves: tuple[int, ...] = ()
    paths: tuple[Path, ...] = ()
    orphans: tuple[int, ...] = ()
    failure: str | None = None

    @property
    def dialects(self) -> tuple[str, ...]:
        """Those of its turns, in the order of their first use."""
        return tuple(dict.fromkeys(turn.dialect for turn in self.turns))

    @property
    def clients(self) -> tuple[str, ...]:
        """Those of its turns that gave a name, in the order of their first use."""
        return tuple(dict.fromkeys(turn.client for turn in self.turns if turn.client))

    @property
    def roots(self) -> tuple[RootReason, ...]:
        """Why its roots began, in their order."""
        return tuple(turn.root for turn in self.turns if turn.root is not None)

    @property
    def samples(self) -> tuple[str, ...]:
        """That came of it."""
        return tuple(path.sample for path in self.paths)


async def read_sessions(part: LogPart, samples: Sequence[str]) -> list[AgentSession]:
    """All tries at these requested samples, in the order in which they were opened."""
    events = await part.about(ENDED, samples)
    sessions = sessions_of(events)
    if still := [session.sample for session in sessions if session.sealed is None]:
        events += await part.about((TurnBegun,), still)
        sessions = sessions_of(sorted(events, key=lambda recorded: recorded.position))
    return sessions


def sessions_of(events: Iterable[Recorded]) -> list[AgentSession]:
    """Of one or several samples, in the order in which they were opened. events: in order."""
    open_: dict[str, _Folding] = {}
    folded = list[_Folding]()
    for recorded in events:
        event = recorded.envelope.event
        if isinstance(event, SessionOpened):
            open_[event.sample] = _Folding(event, recorded)
            folded.append(open_[event.sample])
        elif (session := open_.get(event.entity())) is not None:
            session.apply(event, recorded.envelope.at)
    return [session.whole() for session in folded]


class _Folding:
    """A session that is being folded."""

    def __init__(self, opened: SessionOpened, recorded: Recorded) -> None:
        self._opened, self._recorded = opened, recorded
        self._turns, self._open = dict[int, TurnRecorded](), dict[int, int]()
        self._seal: SessionSealed | None = None
        self._sealed_at: int | None = None
        self._failure: str | None = None

    def apply(self, event: object, at: int) -> None:
        match event:
            case TurnBegun():
                self._open[event.index] = at
            case TurnRecorded():
                self._open.pop(event.index, None)
                self._turns[event.index] = event
            case SessionSealed() if event.attempt == self._opened.attempt:
                self._seal, self._sealed_at = event, at
            case RolloutFailed() if event.attempt == self._opened.attempt:
                self._failure = event.message

    def whole(self) -> AgentSession:
        opened, seal = self._opened, self._seal
        paths = self._paths()
        trained = {
            turn: (path.sample, weight)
            for path, credited in paths
            for turn, weight in zip(credited.turns, credited.weights, strict=True)
            if turn in credited.trained
        }
        return AgentSession(
            session=session_name(opened.sample, opened.attempt),
            sample=opened.sample,
            group=opened.group,
            run=self._recorded.envelope.run,
            attempt=opened.attempt,
            source=opened.sender,
            opened_at=self._recorded.envelope.at,
            sealed_at=self._sealed_at,
            sealed=seal.reason if seal else None,
            exit_code=seal.exit_code if seal else None,
            reward=seal.reward if seal else None,
            rewards=seal.rewards if seal else {},
            credit=seal.credit if seal else None,
            discount=seal.discount if seal else 1.0,
            turns=tuple(self._turn(turn, trained) for _, turn in sorted(self._turns.items())),
            open=tuple(OpenTurn(turn=turn, begun_at=at) for turn, at in self._open.items()) if seal is None else (),
            leaves=seal.leaves if seal else (),
            paths=tuple(path for path, _ in paths),
            orphans=seal.orphans if seal else (),
            failure=self._failure,
        )

    def _paths(self) -> list[tuple[Path, CreditedPath]]:
        seal = self._seal
        if seal is None or self._failure is not None or not set(seal.leaves) <= self._turns.keys():
            return []
        extends = {number: turn.extends for number, turn in self._turns.items()}
        credited = credited_paths(extends, seal.leaves, CreditRule.of(seal))
        names = (sibling_id(seal.sample, number) for number in range(len(credited)))
        return [(Path(sample=name, turns=one.turns), one) for name, one in zip(names, credited, strict=True)]

    def _turn(self, turn: TurnRecorded, trained: Mapping[int, tuple[str, float]]) -> AgentTurn:
        agent, (sample, weight) = turn.agent, trained.get(turn.index, (None, None))
        return AgentTurn(
            turn=turn.index,
            dialect=agent.dialect if agent else "",
            client=agent.client if agent else "",
            extends=turn.extends,
            root=agent.root if agent else None,
            nearest=agent.nearest if agent else None,
            drift=agent.drift if agent else None,
            rule=agent.rule if agent else "",
            prompt=turn.observed.n,
            tokens=turn.length,
            versions=tuple(dict.fromkeys(span.version for span in turn.spans)),
            stop=turn.stop,
            seconds=turn.seconds,
            sample=sample,
            weight=weight,
            orphan=self._seal is not None and turn.index in self._seal.orphans,
        )
