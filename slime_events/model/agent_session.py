"""`AgentSession`: one attempt of an agent at a rollout, from the log: who opened it, its turns, and the samples from
it.

session -> turns (a forest) -> paths -> samples: `AgentSession.paths`, in the order of `session.sealed`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from schemas.doc import doc
from schemas.ids import session_name, sibling_id
from schemas.rollouts import RolloutFailed, StopReason
from schemas.sessions import Credit, SealReason, SessionOpened, SessionSealed
from schemas.turns import RootReason, TurnBegun, TurnRecorded
from slime_events.algorithms.credit import CreditedPath, CreditRule, credited_paths
from slime_events.model.lookup import LogPart
from storage.log import Recorded

ENDED = (SessionOpened, TurnRecorded, SessionSealed, RolloutFailed)
"""Event types, about the requested sample, that an ended session is folded from. An open session needs `TurnBegun` too.
"""


class AgentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn."""

    turn: Annotated[int, doc("index of the turn in the session")]
    dialect: Annotated[str, doc("API that the agent called: chat, responses, messages, generate")]
    client: Annotated[str, doc("name of the agent's HTTP client (User-Agent)")] = ""
    extends: Annotated[int | None, doc("turn that it continues")] = None
    root: Annotated[RootReason | None, doc("why it continues no turn; None if it extends one")] = None
    nearest: Annotated[int | None, doc("for a root: the turn with which it shares most tokens")] = None
    drift: Annotated[int | None, doc("for a root: index of the first token that differs from that turn's path")] = None
    rule: Annotated[str, doc("rule that made the token ids of its prompt")] = ""
    prompt: Annotated[int, doc("new tokens of its prompt")] = 0
    tokens: Annotated[int, doc("generated tokens")] = 0
    versions: Annotated[tuple[int, ...], doc("weight versions that generated them")] = ()
    stop: Annotated[StopReason | None, doc("how the generation ended")] = None
    seconds: Annotated[float, doc("duration [s]")] = 0.0
    sample: Annotated[str | None, doc("sample in which its tokens are trained on; None if they never are")] = None
    weight: Annotated[float | None, doc("weight of each of these tokens")] = None
    orphan: Annotated[bool, doc("its answer was lost and requested again")] = False


class OpenTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that has begun and not ended."""

    turn: Annotated[int, doc("index of the turn in the session")]
    begun_at: Annotated[int, doc("UTC [ns]")]


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """Turns of one sample, from a root to the turn that ended the path."""

    sample: Annotated[str, doc("id of the sample")]
    turns: Annotated[tuple[int, ...], doc("indices of the turns")]


class AgentSession(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of an agent at a rollout."""

    session: Annotated[str, doc("name, `<sample>.<attempt>`")]
    sample: Annotated[str, doc("id of the requested sample")]
    group: Annotated[str, doc("id of its group")]
    run: Annotated[str, doc("run whose log has the session")]
    attempt: Annotated[int, doc("index of the attempt, from 0")]
    source: Annotated[str, doc("source whose token the harness used")]
    opened_at: Annotated[int, doc("UTC [ns]")]
    sealed_at: Annotated[int | None, doc("UTC [ns]; None while it is open")] = None
    sealed: Annotated[SealReason | None, doc("why it ended; None while it is open")] = None
    exit_code: Annotated[int | None, doc("exit code of the agent's program, if the harness gave one")] = None
    reward: Annotated[float | None, doc("the harness' reward for all paths")] = None
    rewards: Annotated[dict[int, float], doc("harness' rewards for single paths, by the turn that ended the path")] = {}
    credit: Annotated[Credit | None, doc("rule that gives each token its weight in training")] = None
    discount: Annotated[float, doc("factor per turn, if `credit` is `discounted`")] = 1.0
    turns: Annotated[tuple[AgentTurn, ...], doc("turns that have ended")] = ()
    open: Annotated[tuple[OpenTurn, ...], doc("turns under way")] = ()
    leaves: Annotated[tuple[int, ...], doc("turns that ended a path")] = ()
    paths: Annotated[tuple[Path, ...], doc("paths that became samples")] = ()
    orphans: Annotated[tuple[int, ...], doc("turns whose answers were lost, including turns that never ended")] = ()
    failure: Annotated[str | None, doc("why it gave no samples, one sentence")] = None

    @property
    def dialects(self) -> tuple[str, ...]:
        """APIs of its turns, in the order of their first use."""
        return tuple(dict.fromkeys(turn.dialect for turn in self.turns))

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of its HTTP clients, in the order of their first use."""
        return tuple(dict.fromkeys(turn.client for turn in self.turns if turn.client))

    @property
    def roots(self) -> tuple[RootReason, ...]:
        """Why its roots began, in their order."""
        return tuple(turn.root for turn in self.turns if turn.root is not None)

    @property
    def samples(self) -> tuple[str, ...]:
        """Ids of its samples."""
        return tuple(path.sample for path in self.paths)


async def read_sessions(part: LogPart, samples: Sequence[str]) -> list[AgentSession]:
    """Return all attempts at these requested samples, in the order in which they were opened."""
    events = await part.about(ENDED, samples)
    sessions = sessions_of(events)
    if open_samples := [session.sample for session in sessions if session.sealed is None]:
        events += await part.about((TurnBegun,), open_samples)
        sessions = sessions_of(sorted(events, key=lambda recorded: recorded.position))
    return sessions


def sessions_of(events: Iterable[Recorded]) -> list[AgentSession]:
    """Fold the sessions of one or several samples, in the order in which they were opened. events: in log order."""
    newest: dict[str, _SessionFold] = {}
    folded = list[_SessionFold]()
    for recorded in events:
        event = recorded.envelope.event
        if isinstance(event, SessionOpened):
            newest[event.sample] = _SessionFold(event, recorded)
            folded.append(newest[event.sample])
        elif (session := newest.get(event.entity())) is not None:
            session.apply(event, recorded.envelope.at)
    return [session.result() for session in folded]


class _SessionFold:
    """Fold of one session."""

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

    def result(self) -> AgentSession:
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
        return [(Path(sample=name, turns=path.turns), path) for name, path in zip(names, credited, strict=True)]

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
