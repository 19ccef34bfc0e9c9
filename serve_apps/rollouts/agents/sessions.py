"""`Sessions`: the sessions of one gateway. They are a cache: the log is authoritative.

If a fence refuses a write, the gateway reads the log and tries again. So any number of gateways may serve the same
session, and any gateway replaces one that was killed.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from schemas.errors import Conflict, SlimeEventsError
from schemas.ids import session_name, session_of
from schemas.prompts import PromptSubmitted
from schemas.sessions import SessionOpened, SessionSealed
from schemas.subjects import everything_about, matches
from serve_apps.rates import Rates
from serve_apps.rollouts.agents.agent_request import Dialect
from serve_apps.rollouts.agents.dialects.messages import Messages
from serve_apps.rollouts.agents.live_board import LiveBoard
from serve_apps.rollouts.agents.live_session import LiveSession, Turn, TurnKey, TurnRefused
from serve_apps.rollouts.agents.reading import AllRequests
from serve_apps.rollouts.agents.run_log import RunLog
from serve_apps.rollouts.agents.sealing import Sealing, Verdict, sealed
from serve_apps.rollouts.agents.setup import AgentSetup
from serve_apps.rollouts.agents.turns import Turns
from serve_apps.rollouts.rollout import Prompts
from slime_events.core.sessions.board import SessionBoard
from slime_events.core.sessions.session import Session, read_attempt, read_session, seal_due
from storage.cancellation import end_all
from storage.log import Fence

KEPT = 4096
"""Sessions in memory. The least recently used one is dropped, and read again if it is needed."""
LOOK_S = 2.0
"""Seconds between two checks whether a session must be sealed."""
WAIT_LOOK_S = 0.25
AGAIN_S = 2.0
RESUME_S = 30.0
"""Seconds after which a harness retries to open a session of an interrupted run."""
CLIENT_LENGTH = 120
"""Characters of a client's User-Agent that are recorded."""
INTERRUPTED = "the run was interrupted: `slime-events resume` continues it"
log = logging.getLogger(__name__)


class Sessions:
    """Opens, serves and seals sessions, as a context manager. run_log: entered by the caller."""

    def __init__(self, run_log: RunLog, setup: AgentSetup, *, look_s: float = LOOK_S) -> None:
        self._run_log, self.setup, self._look_s = run_log, setup, look_s
        self._board = LiveBoard(run_log.events)
        self._requests, self._prompts = AllRequests(), Prompts(run_log.events)
        self._turns = Turns(run_log, setup, self._board, self._requests)
        self._live: OrderedDict[str, LiveSession] = OrderedDict()
        self._rates = Rates()
        self._looking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look(), name="agents' sessions")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._looking is not None:
            await end_all(self._looking)
        await self._turns.close()

    async def open(
        self, sender: str, *, group: str | None = None, wait_s: float = 0.0, key: str | None = None
    ) -> tuple[Session, PromptSubmitted]:
        """Open a session of the oldest rollout that waits for an agent, once an engine is ready.

        wait_s: seconds to wait for both. key: a second call of the same sender with the same key returns the same
        session. Raises TurnRefused (429 if no rollout waits or no engine is ready), StorageError.
        """
        end = time.monotonic() + wait_s
        key = key or secrets.token_hex(16)
        while True:
            board = await self._board.read()
            can_answer = board.over or board.ready_at is not None
            if can_answer and (earlier := board.by_key.get((sender, key))) is not None:
                return await self._opened(earlier)
            if board.over or not can_answer or (request := board.next(group)) is None:
                if board.over or time.monotonic() >= end:
                    raise _none_waits(board, group)
                await asyncio.sleep(WAIT_LOOK_S)
                continue
            session = await self._read(request.sample)
            is_free = session.request == request and session.opened is None and session.ended is None
            opened = SessionOpened(
                sample=request.sample,
                attempt=request.attempt,
                group=request.group,
                sender=sender,
                key=key,
                gateway=self._run_log.worker.id,
            )
            if is_free and await self._append_opened(session, opened):
                return await self._opened(opened)

    async def _append_opened(self, session: Session, opened: SessionOpened) -> bool:
        try:
            (recorded,) = await self._run_log.append([opened], self._fence(session))
        except Conflict:  # another gateway opened it first
            return False
        session.apply(recorded)
        return True

    async def _opened(self, opened: SessionOpened) -> tuple[Session, PromptSubmitted]:
        live = await self._live_of(session_name(opened.sample, opened.attempt))
        return live.folded, await self._prompts.of(opened.group)

    async def open_turn(self, name: str, dialect: Dialect, path: str, body: bytes, headers: Mapping[str, str]) -> Turn:
        """Begin the turn of an agent's request, or return the turn that the request repeats.

        headers: with names in lower case. Raises TurnRefused, BadField, StorageError.
        """
        request, digest = await self._requests.of(name).read_off_loop(dialect, path, body)
        request = replace(request, client=_client(headers))
        self._admit(name)
        return await self._turns.ask(await self._live_of(name), request, body, TurnKey.of(headers, digest))

    async def count_tokens(self, name: str, dialect: Messages, path: str, body: bytes) -> int:
        """Return the number of prompt tokens of a request. Raises TurnRefused, BadField, StorageError."""
        request, _ = await self._requests.of(name).read_off_loop(dialect, path, body, dialect.read_count)
        self._admit(name)
        return await self._turns.count(await self._live_of(name), request, len(body))

    def _admit(self, name: str) -> None:
        most = self.setup.rules.turns_per_minute
        if wait_s := self._rates.wait_s(name, most):
            seconds = math.ceil(wait_s)
            message = f"a session may make {most:,} requests a minute (--agent-turns-per-minute): retry in {seconds} s"
            raise TurnRefused(429, message, again_s=seconds)

    async def state(self, name: str) -> Session:
        """Return a session's state from the log. Raises TurnRefused if it does not exist.

        If the run has requested the rollout again, return the final state of the earlier attempt.
        """
        with contextlib.suppress(TurnRefused):
            live = await self._live_of(name)
            await read_session(self._run_log.events, live.folded.sample, live.folded)
            if live.folded.name == name:
                return live.folded
        parts = session_of(name)
        before = None if parts is None else await read_attempt(self._run_log.events, *parts)
        if before is None or before.opened is None or before.name != name:
            raise TurnRefused(404, f"there is no session {name}")
        return before

    async def seal(self, name: str, verdict: Verdict) -> SessionSealed:
        """End a session. A second call with the same verdict returns the same seal.

        Raises TurnRefused (409 if the session has ended differently), StorageError, and PlugPointError if one of its
        samples cannot be trained on.
        """
        while True:
            session = await self.state(name)
            if session.sealed is not None:
                return _same(session.sealed, verdict)
            live = self._live.get(name)
            if live is None or session is not live.folded:
                raise TurnRefused(409, f"session {name} was abandoned: the run has requested its rollout again")
            if session.ended is not None:
                raise TurnRefused(409, f"session {name} has ended")
            try:
                return await self._seal(live, verdict)
            except Conflict:
                continue

    async def _seal(self, live: LiveSession, verdict: Verdict) -> SessionSealed:
        session, setup = live.folded, self.setup
        assert session.request is not None
        prompt = await self._prompts.of(session.request.group)
        own = prompt.custom_rm_path or (isinstance(prompt.metadata, dict) and prompt.metadata.get("rm_type"))
        run = Sealing(
            prompt,
            setup.fetch(session.request.prompt),
            setup.rules.credit,
            setup.tokenizer,
            self._run_log.worker.id,
            grades=setup.rules.grades or bool(own),
            now=time.time_ns(),
            fails_idle=setup.rules.fails_idle,
        )
        events = await asyncio.to_thread(sealed, session, live.turns(), verdict, run)
        fence = self._fence(session)
        for recorded in await self._run_log.append(events, fence):
            if matches(fence.subject, recorded.subject):
                session.apply(recorded)  # not later events: the run may have requested the rollout again
        for turn in list(live.under_way.values()):
            if turn.call is not None:
                await self._run_log.calls.abort(turn.call, "its session was sealed")
        self._live.pop(live.name, None)
        self._requests.forget(live.name)
        assert session.sealed is not None
        return _same(session.sealed, verdict)

    def _fence(self, session: Session) -> Fence:
        return Fence(everything_about(self._run_log.events.run, session.sample), session.position)

    async def _read(self, sample: str) -> Session:
        return await read_session(self._run_log.events, sample)

    async def _live_of(self, name: str) -> LiveSession:
        """Return an opened session. Raises TurnRefused if it does not exist."""
        parts = session_of(name)
        live = self._live.get(name)
        if live is None and parts is not None:
            session = await self._read(parts[0])
            if session.opened is not None and session.name == name:
                live = self._live.setdefault(name, LiveSession(name, session, self.setup.fetch))
        if live is None:
            raise TurnRefused(404, f"there is no session {name}")
        self._live.move_to_end(name)
        while len(self._live) > KEPT:
            self._live.popitem(last=False)
        return live

    async def _look(self) -> None:
        """Seal sessions that are due, also those that other gateways opened. The first gateway to append wins."""
        while True:
            await asyncio.sleep(self._look_s)
            try:
                board, now = await self._board.read(), time.time_ns()
                idle_ns = self.setup.rules.limits.idle_s * 1e9
                for sample, opened in list(board.open.items()):
                    is_needed = board.is_undecided(sample) and not board.over
                    live = self._live.get(session_name(sample, opened.attempt))
                    moved = live.folded.moved_at if live else board.opened_at[sample]
                    if not is_needed or now - moved >= idle_ns or now - board.opened_at[sample] >= idle_ns:
                        name = session_name(sample, opened.attempt)
                        await self._seal_if_due(name, now, is_needed=is_needed, ready_at=board.ready_at)
            except SlimeEventsError as error:
                log.warning(
                    "cannot check which agents' sessions are due to be sealed, next try in %g s: %s",
                    self._look_s,
                    error,
                )

    async def _seal_if_due(self, name: str, now: int, *, is_needed: bool, ready_at: int | None) -> None:
        with contextlib.suppress(TurnRefused):
            session, limits = await self.state(name), self.setup.rules.limits
            if not session.takes_turns:
                return
            reason = seal_due(session, now, limits, is_needed=is_needed, ready_at=ready_at)
            if reason is not None:
                await self.seal(name, Verdict(reason))


def _client(headers: Mapping[str, str]) -> str:
    """Return the printable beginning of the client's User-Agent."""
    agent = headers.get("user-agent", "")
    return "".join(character for character in agent if character.isprintable())[:CLIENT_LENGTH]


def _none_waits(board: SessionBoard, group: str | None) -> TurnRefused:
    which = "no rollout" if group is None else f"no rollout of group {group}"
    if board.interrupted:
        return TurnRefused(503, f"{INTERRUPTED}. Until then {which} can be opened", again_s=RESUME_S)
    if board.over:
        return TurnRefused(409, f"the run is over: {which} waits for an agent")
    if board.ready_at is None:
        message = f"no engine is ready: {which} can be opened until an engine has loaded the run's weights"
        return TurnRefused(429, message, again_s=AGAIN_S)
    message = f"{which} waits for an agent: every rollout that the run's staleness limit allows now is open or done"
    return TurnRefused(429, f"{message} ({len(board.open)} sessions are open)", again_s=AGAIN_S)


def _same(sealed: SessionSealed, verdict: Verdict) -> SessionSealed:
    """Return the existing seal if it has the same verdict. Raises TurnRefused."""
    existing = (sealed.reward, sealed.rewards, sealed.exit_code, sealed.metadata)
    if existing != (verdict.reward, verdict.rewards, verdict.exit_code, verdict.metadata):
        message = f"the session of sample {sealed.sample} is already sealed ({sealed.reason}) with a different verdict"
        raise TurnRefused(409, message)
    return sealed
