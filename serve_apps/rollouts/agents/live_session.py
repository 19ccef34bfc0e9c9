"""`LiveSession`: a gateway's copy of a session. `Turn`: one of its turns, in progress or recorded."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from schemas.doc import doc
from schemas.rollouts import StopReason
from schemas.turns import AgentTurn, TurnRecorded
from serve_apps.engines.engine import LogProbs, Tokens
from serve_apps.rollouts.agents.agent_request import AgentRequest, Answer, Part
from serve_apps.rollouts.agents.attach import Chains
from serve_apps.rollouts.agents.turn_reader import TurnReader
from serve_apps.rollouts.calls import Call
from slime_events.core.sessions.session import Session
from slime_events.core.sessions.turn_paths import TokenPath
from slime_events.core.tokens.trajectory import Fetch


class TurnRefused(Exception):
    """A request that gets no turn. status: HTTP status of the answer. again_s: seconds until a retry makes sense."""

    def __init__(self, status: int, message: str, *, again_s: float | None = None) -> None:
        super().__init__(message)
        self.status, self.again_s = status, again_s


@dataclass(frozen=True, slots=True)
class TurnKey:
    """Identity of a request, by which a retry finds its turn."""

    digest: Annotated[str, doc("digest of the Idempotency-Key, or of path and body")]
    is_retry: Annotated[bool, doc("the client marks a retry; without a mark, an equal body begins another turn")]

    @classmethod
    def of(cls, headers: Mapping[str, str], digest: str) -> "TurnKey":
        """Return the key of a request. headers: with names in lower case. digest: of path and body."""
        key = headers.get("idempotency-key")
        retries = headers.get("x-stainless-retry-count", "0")
        is_retry = key is not None or (retries.isdecimal() and int(retries) > 0)
        return cls(hashlib.sha256(b"key:" + key.encode()).hexdigest() if key else digest, is_retry)


@dataclass(frozen=True, slots=True)
class LoadedTurn:
    """A recorded turn with its arrays loaded; implements `attach.PriorTurn`."""

    event: TurnRecorded
    agent: AgentTurn
    observed: Tokens
    generated: Tokens
    log_probs: LogProbs

    @classmethod
    def of(cls, event: TurnRecorded, fetch: Fetch) -> "LoadedTurn":
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
        return self.event.stop or StopReason.STOP


@dataclass(slots=True)
class LiveSession:
    """A gateway's copy of a session. It may be behind the log; then the fence of a write fails."""

    name: Annotated[str, doc("name of this attempt; the sample may have a newer attempt")]
    folded: Annotated[Session, doc("state from the events read so far")]
    fetch: Fetch
    lock: Annotated[asyncio.Lock, doc("held while a request finds its place and begins its turn")] = field(
        default_factory=asyncio.Lock
    )
    under_way: Annotated[dict[int, "Turn"], doc("turns in progress, by index")] = field(default_factory=dict)
    chains: Chains = field(default_factory=Chains)
    _loaded: dict[int, LoadedTurn] = field(default_factory=dict)
    _ends: dict[int, TokenPath] = field(default_factory=dict)

    @property
    def takes_turns(self) -> bool:
        """Whether the session takes turns, by the events read so far."""
        return self.folded.takes_turns and self.folded.name == self.name

    def turns(self) -> list[LoadedTurn]:
        """Return the recorded turns, oldest first."""
        return [self.turn(index) for index in sorted(self.folded.turns)]

    def turn(self, index: int) -> LoadedTurn:
        event = self.folded.turns[index]
        if index not in self._loaded or self._loaded[index].event is not event:
            self._loaded[index] = LoadedTurn.of(event, self.fetch)
        return self._loaded[index]

    def answered(self, digest: str) -> LoadedTurn | None:
        """Return the newest turn whose messages and answer have this digest."""
        index = self.folded.answered(digest)
        return None if index is None else self.turn(index)

    def fixed(self) -> "FixedForest":
        """Return the recorded turns as an immutable forest, for a thread."""
        turns = self.turns()
        return FixedForest(turns, {turn.answered: turn for turn in turns})

    def prompt(self, extends: int | None, observed: Tokens) -> TokenPath:
        """Return the whole prompt of a turn that extends `extends` with `observed`."""
        return (TokenPath() if extends is None else self.end(extends)).then(observed)

    def end(self, index: int) -> TokenPath:
        """Return prompt and generated tokens of a recorded turn."""
        missing = list[LoadedTurn]()
        at: int | None = index
        while at is not None and at not in self._ends:
            missing.append(self.turn(at))
            at = missing[-1].extends
        for turn in reversed(missing):
            self._ends[turn.index] = self.prompt(turn.extends, turn.observed).then(turn.generated)
        return self._ends[index]


@dataclass(frozen=True, slots=True)
class FixedForest:
    """An immutable `attach.Forest`."""

    recorded: Annotated[list[LoadedTurn], doc("recorded turns, oldest first")]
    by_answer: Annotated[dict[str, LoadedTurn], doc("newest turn by the digest of its messages and answer")]

    def turns(self) -> list[LoadedTurn]:
        return self.recorded

    def answered(self, digest: str) -> LoadedTurn | None:
        return self.by_answer.get(digest)


@dataclass(slots=True)
class Turn:
    """One turn, in progress or recorded."""

    id: Annotated[str, doc("id of the turn; a retry gets the same id")]
    created: Annotated[int, doc("seconds of Unix time")]
    request: AgentRequest
    prompt: Annotated[Tokens, doc("token ids of the whole prompt, int32 [tokens]")]
    reader: Annotated[TurnReader, doc("reads the answer once, for its record and for all clients that wait for it")]
    call: Annotated[Call | None, doc("generation of the turn; None if the turn was already recorded")] = None
    task: Annotated[asyncio.Task[LoadedTurn] | None, doc("records the turn; None if it was already recorded")] = None
    recorded: Annotated[LoadedTurn | None, doc("the turn in the log, once it is there")] = None

    async def end(self) -> LoadedTurn:
        """Wait until the turn is in the log. Raises TurnRefused, StorageError."""
        if self.recorded is None:
            assert self.task is not None
            self.recorded = await asyncio.shield(self.task)
        return self.recorded

    async def parts(self, quiet_s: float) -> AsyncIterator[list[Part]]:
        """Yield the parts of the answer as they come; an empty list if none come for `quiet_s` seconds.

        The last parts come once the turn is in the log. Raises TurnRefused, StorageError.
        """
        count = 0
        if self.call is not None and self.task is not None:
            moved = self.call.moved
            self.task.add_done_callback(lambda _: moved.set())
        while self.recorded is None and self.call is not None and self.task is not None and not self.task.done():
            self.call.moved.clear()
            self.read(self.call.trajectory.tokens, self.call.trajectory.log_probs)
            if new := self.reader.parts[count:]:
                count += len(new)
                yield new
                continue
            try:
                async with asyncio.timeout(quiet_s):  # not wait_for with a task, which costs two wake-ups per token
                    await self.call.moved.wait()
            except TimeoutError:
                yield []
        recorded = await self.end()
        self.read(recorded.generated, recorded.log_probs, recorded.stop)
        if rest := [*self.reader.parts[count:], *(self.reader.last or ())]:
            yield rest

    def read(self, tokens: Tokens, log_probs: LogProbs, stop: StopReason | None = None) -> None:
        """Read the tokens that were not read before. tokens, log_probs: of the answer so far. stop: if it is whole."""
        if len(tokens) > (start := self.reader.length):
            self.reader.feed(tokens[start:].tolist(), log_probs[start:].tolist())
        if stop is not None and self.reader.last is None:
            self.reader.end(stop)

    async def answer(self) -> Answer:
        """Wait until the turn is in the log, and return its answer. Raises TurnRefused, StorageError."""
        recorded = await self.end()
        self.read(recorded.generated, recorded.log_probs, recorded.stop)
        return Answer(
            id=self.id,
            created=self.created,
            message=self.reader.message,
            stop=recorded.stop,
            text=self.reader.text,
            prompt_tokens=len(self.prompt),
            tokens=tuple(recorded.generated.tolist()),
            log_probs=tuple(recorded.log_probs.tolist()),
            versions=tuple(dict.fromkeys(span.version for span in recorded.event.spans)),
            matched=self.reader.matched,
            reasoning_tokens=self.reader.reasoning_tokens,
            pieces=self.reader.pieces,
        )


def check_open(live: LiveSession) -> None:
    """Raise TurnRefused if the session takes no turns."""
    session = live.folded
    if session.name != live.name:
        raise TurnRefused(409, f"session {live.name} was abandoned: the run has requested its rollout again")
    if session.opened is None:
        raise TurnRefused(404, f"session {session.name} is not open")
    if session.sealed is not None:
        raise TurnRefused(409, f"session {session.name} was sealed ({session.sealed.reason}): it takes no more turns")
    if session.ended is not None:
        raise TurnRefused(409, f"session {session.name} has ended: it takes no more turns")
