"""`LiveSession`: a session as one gateway knows it, and `Turn`: one of its turns, under way or recorded."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from schemas.rollouts import StopReason
from schemas.turns import AgentTurn, TurnRecorded
from serve_apps.agents.asked import AgentRequest
from serve_apps.agents.attach import Chains
from serve_apps.calls import Call
from serve_apps.engine.engine import LogProbs, Tokens
from slime_events.core.state.sessions import Session
from slime_events.core.trajectory import Fetch
from slime_events.core.turn_paths import TokenPath


class TurnRefused(Exception):
    """A turn that is not made: with this HTTP status, for this reason. again_s: when to come again."""

    def __init__(self, status: int, message: str, *, again_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.again_s = status, again_s


@dataclass(frozen=True, slots=True)
class TurnKey:
    """How a request is known again. digest: of its Idempotency-Key or its body. is_retry: its client says that it has
    sent it before; a repeated body alone is another turn.
    """

    digest: str
    is_retry: bool


@dataclass(frozen=True, slots=True)
class LoadedTurn:
    """A recorded turn, as `attach.Known`."""

    event: TurnRecorded
    agent: AgentTurn
    observed: Tokens
    generated: Tokens
    log_probs: LogProbs

    @classmethod
    def of(cls, event: TurnRecorded, fetch: Fetch) -> "LoadedTurn":
        """Of a turn of an agent."""
        assert event.agent is not None
        return cls(event, event.agent, fetch(event.observed), fetch(event.tokens), fetch(event.log_probs))

    @property
    def index(self) -> int:
        return self.event.index

    @property
    def extends(self) -> int | None:
        return self.event.extends

    @property
    def frame(self) -> str:
        return self.agent.frame

    @property
    def messages(self) -> tuple[str, ...]:
        return self.agent.messages

    @property
    def answered(self) -> str:
        return self.agent.answered

    @property
    def stop(self) -> StopReason:
        """Why it ended."""
        return self.event.stop or StopReason.STOP


@dataclass(slots=True)
class LiveSession:
    """A session as this gateway knows it: it may be behind the log, which a fence then tells. name: of this attempt;
    its sample may have another one by now.
    """

    name: str
    folded: Session
    fetch: Fetch
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    under_way: dict[int, "Turn"] = field(default_factory=dict)
    chains: Chains = field(default_factory=Chains)
    _known: dict[int, LoadedTurn] = field(default_factory=dict)
    _ends: dict[int, TokenPath] = field(default_factory=dict)

    @property
    def takes_turns(self) -> bool:
        """As far as this gateway knows."""
        return self.folded.takes_turns and self.folded.name == self.name

    def turns(self) -> list[LoadedTurn]:
        """The recorded turns, oldest first."""
        return [self.turn(index) for index in sorted(self.folded.turns)]

    def turn(self, index: int) -> LoadedTurn:
        """A recorded turn."""
        event = self.folded.turns[index]
        if index not in self._known or self._known[index].event is not event:
            self._known[index] = LoadedTurn.of(event, self.fetch)
        return self._known[index]

    def answered(self, digest: str) -> LoadedTurn | None:
        """The newest turn whose messages and answer have this digest."""
        index = self.folded.answered(digest)
        return None if index is None else self.turn(index)

    def fixed(self) -> "FixedForest":
        """The recorded turns as they are now, for a thread."""
        turns = self.turns()
        return FixedForest(turns, {turn.answered: turn for turn in turns})

    def prompt(self, extends: int | None, observed: Tokens) -> TokenPath:
        """All tokens before a turn's own."""
        return (TokenPath() if extends is None else self.end(extends)).then(observed)

    def end(self, index: int) -> TokenPath:
        """Prompt and generated tokens of a recorded turn."""
        todo = list[LoadedTurn]()
        at: int | None = index
        while at is not None and at not in self._ends:
            todo.append(self.turn(at))
            at = todo[-1].extends
        for turn in reversed(todo):
            self._ends[turn.index] = self.prompt(turn.extends, turn.observed).then(turn.generated)
        return self._ends[index]


@dataclass(frozen=True, slots=True)
class FixedForest:
    """Recorded turns, as `attach.Forest`, to which none is added."""

    known: list[LoadedTurn]
    by_answer: dict[str, LoadedTurn]

    def turns(self) -> list[LoadedTurn]:
        """Oldest first."""
        return self.known

    def answered(self, digest: str) -> LoadedTurn | None:
        """The newest turn whose messages and answer have this digest."""
        return self.by_answer.get(digest)


@dataclass(slots=True)
class Turn:
    """One turn, under way or recorded. id: the same at each try. prompt: its token ids. task: records it."""

    id: str
    created: int
    asked: AgentRequest
    prompt: Tokens
    stops: tuple[str, ...]
    call: Call | None = None
    task: asyncio.Task[LoadedTurn] | None = None
    recorded: LoadedTurn | None = None

    async def end(self) -> LoadedTurn:
        """What the log has of it. Raises TurnRefused, StorageError."""
        if self.recorded is None:
            assert self.task is not None
            self.recorded = await asyncio.shield(self.task)
        return self.recorded

    async def tokens(self, quiet_s: float) -> AsyncIterator[tuple[list[int], list[float]]]:
        """Its tokens and log-probs from the first on, as they come; none of either where nothing came for long."""
        seen = 0
        if self.call is not None and self.task is not None:
            moved = self.call.moved
            self.task.add_done_callback(lambda _: moved.set())
        while self.recorded is None and self.call is not None and self.task is not None and not self.task.done():
            self.call.moved.clear()
            known = self.call.known
            if known.length > seen:
                start, seen = seen, known.length
                yield known.tokens[start:seen].tolist(), known.log_probs[start:seen].tolist()
                continue
            try:
                async with asyncio.timeout(quiet_s):  # no task of its own: it would cost each token two wake-ups
                    await self.call.moved.wait()
            except TimeoutError:
                yield [], []
        turn = await self.end()
        if len(turn.generated) > seen:
            yield turn.generated[seen:].tolist(), turn.log_probs[seen:].tolist()


def check_open(live: LiveSession) -> None:
    """Raises TurnRefused where the session takes no turns."""
    session = live.folded
    if session.name != live.name:
        raise TurnRefused(409, f"session {live.name} was given up: the run has asked for its rollout again")
    if session.opened is None:
        raise TurnRefused(404, f"no session {session.name} is open")
    if session.sealed is not None:
        raise TurnRefused(409, f"session {session.name} was sealed ({session.sealed.reason}): it takes no more turns")
    if session.ended is not None:
        raise TurnRefused(409, f"session {session.name} has ended: it takes no more turns")
