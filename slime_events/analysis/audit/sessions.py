"""Agents' sessions: what is trained on was made by an engine, once, in a session that ended well."""

import hashlib
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt

from schemas.arrays import Array
from schemas.doc import doc
from schemas.errors import DamagedEvent, StorageError
from schemas.ids import sibling_id
from schemas.rollouts import Maker, RolloutCompleted, RolloutRequested, TurnEnd
from schemas.sessions import Credit, SessionOpened, SessionSealed
from schemas.turns import AgentTurn, TurnBegun, TurnRecorded
from slime_events.analysis.audit.check import Check
from slime_events.analysis.audit.ledger import Fate, Ledger
from slime_events.analysis.audit.tokens import Fetch


@dataclass(frozen=True, slots=True)
class _Turn:
    """A turn of a session."""

    extends: Annotated[int | None, doc("the turn before it on its path")]
    begins: Annotated[int, doc("first of its own tokens, on that path")]
    ends: Annotated[int, doc("end of its own tokens, on that path")]
    body: Annotated[int, doc("size of its request [bytes]")]


@dataclass(slots=True)
class _Session:
    """The newest session of a sample."""

    attempt: Annotated[int, doc("index of the attempt")]
    group: Annotated[str, doc("id of the group")]
    turns: Annotated[dict[int, _Turn], doc("recorded turns by index")] = field(default_factory=dict)
    begun: Annotated[set[int], doc("indices of turns that began")] = field(default_factory=set)
    seal: Annotated[SessionSealed | None, doc("its seal")] = None
    trained: Annotated[set[int], doc("indices of turns whose tokens are trained on")] = field(default_factory=set)


class Sessions(Check):
    """Checks agents' sessions. fetch: reads an array in the blob store; None: blobs are not checked."""

    name = "sessions"
    promise = "agents' turns as their engines made them, each token trained once, no failed session"
    counted = ("sessions", "turns", "sealed")

    def __init__(self, ledger: Ledger, fetch: Fetch | None = None) -> None:
        super().__init__(ledger)
        self._fetch = fetch
        self._for_agents: set[str] = set()
        self._sessions: dict[str, _Session] = {}
        self._prompts: dict[str, tuple[TurnEnd, str]] = {}

    @property
    def applies(self) -> bool:
        plan = self.ledger.rules.plan
        return plan is not None and plan.agents

    def _on_rollout_requested(self, event: RolloutRequested) -> None:
        if event.maker is Maker.AGENT:
            self._for_agents.add(event.sample)
        if event.after is not None:
            self._prompts[event.sample] = (event.after, event.prompt.digest())

    def _on_session_opened(self, event: SessionOpened) -> None:
        self.seen["sessions"] += 1
        sample, last = self.ledger.samples.get(event.sample), self._sessions.get(event.sample)
        if sample is None or event.sample not in self._for_agents or sample.attempt != event.attempt:
            self.find(f"no agent was requested for attempt {event.attempt}", "a rollout was made without a decision")
        if last is not None and last.attempt >= event.attempt:
            self.find(f"attempt {last.attempt} was opened before", "two programs make the same rollout")
        self._sessions[event.sample] = _Session(event.attempt, event.group)

    def _on_turn_begun(self, event: TurnBegun) -> None:
        session = self._sessions.get(event.sample)
        if session is not None and self._is_open(session):
            session.begun.add(event.index)

    def _on_turn_recorded(self, event: TurnRecorded) -> None:
        if event.agent is None:
            return
        self.seen["turns"] += 1
        session = self._sessions.get(event.sample)
        if session is None:
            self.find("no session of its sample was opened", "it may have no request")
            return
        self._is_open(session)
        if event.index not in session.begun:
            self.find("it has no turn.begun", "its index may belong to another turn")
        before = session.turns.get(event.extends) if event.extends is not None else None
        if event.extends is not None and before is None:
            self.find(f"it extends turn {event.extends}, which is not in the log", "its prompt is unknown")
        begins = (before.ends if before else 0) + event.observed.n
        body = self._body(session, event.agent)
        session.turns[event.index] = _Turn(event.extends, begins, begins + event.length, body)
        after, own = self._prompts.pop(event.agent.call, (None, ""))
        place = (event.sample, event.extends, event.observed.digest())
        if after is not None and (after.sample, after.turn, own) != place:
            wrong = f"its generation continued turn {after.turn} of {after.sample}, or its prompt has other tokens"
            self.find(wrong, "it is an answer to another prompt")
        self._compare(event, event.agent.call, begins)

    def _body(self, session: _Session, agent: AgentTurn) -> int:
        """Return the size of the turn's request [bytes]."""
        shares = agent.shares
        if shares is None:
            return agent.request.n
        before = session.turns.get(shares.turn)
        if before is None or shares.head + shares.tail > before.body:
            wrong = f"its request shares {shares.head + shares.tail} bytes with turn {shares.turn}, which has fewer"
            self.find(wrong, "the request is unknown")
        return shares.head + agent.request.n + shares.tail

    def _compare(self, event: TurnRecorded, call: str, prompt: int) -> None:
        """Compare a turn with its generation."""
        generation = self.ledger.samples.get(call)
        if generation is None or generation.fate is not Fate.COMPLETED:
            self.find(f"its generation {call} has not ended", "the engine that made its tokens is unknown")
            return
        if generation.prompt_length != prompt:
            wrong = (
                f"its path has {prompt} tokens before it, and its generation's prompt has {generation.prompt_length}"
            )
            self.find(wrong, "it is an answer to another prompt")
        arrays = [self._data(array) for array in (event.tokens, event.log_probs)]
        if None not in arrays and hashlib.sha256(b"".join(filter(None, arrays))).hexdigest() != generation.digest:
            self.find(f"its tokens are not those of its generation {call}", "different tokens are trained on")

    def _is_open(self, session: _Session) -> bool:
        if session.seal is not None:
            self.find(f"the session was already sealed ({session.seal.reason.value})", "a late turn was recorded")
        return session.seal is None

    def _on_session_sealed(self, event: SessionSealed) -> None:
        self.seen["sealed"] += 1
        session = self._sessions.get(event.sample)
        if session is None or session.attempt != event.attempt:
            self.find(f"attempt {event.attempt} was not opened", "a rollout was made without a decision")
            return
        if session.seal is not None:
            self.find("it was sealed before", "a session has two ends")
        session.seal = event
        if lost := sorted(session.begun - session.turns.keys() - set(event.orphans)):
            self.find(f"turn {lost[0]} began, and is neither recorded nor an orphan", "a turn is missing")
        if missing := [leaf for leaf in event.leaves if leaf not in session.turns]:
            self.find(f"turn {missing[0]} ends a path, and is not in the log", "a sample has no turns")

    def _on_rollout_completed(self, event: RolloutCompleted) -> None:
        requested = event.rollout or event.sample
        if requested not in self._for_agents:
            return
        session = self._sessions.get(requested)
        if session is None or session.seal is None or session.attempt != event.attempt:
            self.find("its session was not sealed", "it may be trained on before its agent has ended")
            return
        if session.seal.exit_code:
            self.find(f"its program ended with exit code {session.seal.exit_code}", "a failed rollout is trained on")
        leaves = session.seal.leaves[: 1 if session.seal.credit is Credit.LEAF else None]
        number = next((n for n in range(len(leaves)) if sibling_id(requested, n) == event.sample), None)
        if number is None or leaves[number] not in session.turns:
            self.find(f"its session has {len(leaves)} paths", "a sample has no turns")
            return
        self._count(session, leaves[number], event)

    def _count(self, session: _Session, leaf: int, event: RolloutCompleted) -> None:
        """Check that the sample trains on tokens of its path's turns alone, and on each turn once."""
        path = [leaf]
        while (before := session.turns[path[-1]].extends) is not None and before in session.turns:
            path.append(before)
        mask = self._mask(event)
        if mask is None:
            return
        credit, seal = self._credit(event), session.seal
        gamma = seal.discount if seal is not None and seal.credit is Credit.DISCOUNTED else 1.0
        for after, index in enumerate(path):
            turn = session.turns[index]
            own = slice(turn.begins - event.prompt_length, turn.ends - event.prompt_length)
            if not mask[own].any():
                continue
            mask[own] = 0
            if credit is not None and (credit[own] != np.float32(gamma**after)).any():
                wrong = (
                    f"the weight of turn {index} is not {gamma**after:.3g}, {after} turns before the end of its path"
                )
                self.find(wrong, "its advantage does not follow the credit rule")
            if index in session.trained:
                self.find(f"turn {index} is trained on in another sample too", "its tokens count twice")
            session.trained.add(index)
        if mask.any():
            self.find(f"token {int(mask.argmax())} is trained on, and no turn made it", "its origin is unknown")

    def _mask(self, event: RolloutCompleted) -> npt.NDArray[np.int8] | None:
        """Return a copy of the loss mask; None if it cannot be read."""
        if event.loss_mask is None:
            return np.ones(event.length, np.int8)
        data = self._data(event.loss_mask)
        return None if data is None or len(data) != event.length else np.frombuffer(data, np.int8).copy()

    def _credit(self, event: RolloutCompleted) -> npt.NDArray[np.float32] | None:
        """Return the tokens' weights; None if they cannot be read."""
        if event.credit is None:
            return np.ones(event.length, np.float32)
        data = self._data(event.credit)
        return None if data is None or len(data) != 4 * event.length else np.frombuffer(data, np.float32)

    def _data(self, array: Array) -> bytes | None:
        if array.blob is None:
            return array.data
        try:
            return None if self._fetch is None else self._fetch(array).tobytes()
        except (StorageError, DamagedEvent):
            return None  # reported by `Tokens`
