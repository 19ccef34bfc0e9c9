"""`Harness`: opens, seals and finds again the sessions of a run with --agents (docs/agents.md). It needs `httpx`."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

import msgspec

from schemas.errors import AccessDenied, InvalidValue, RunNotFound, SlimeEventsError
from schemas.outside_sessions import ListedSession, OpenedSession, SessionList
from slime_events.app.harness_http import OPEN_S, TOO_MANY, HarnessHttp, Patience, Said
from slime_events.app.harness_session import HarnessSession

if TYPE_CHECKING:
    import httpx

WAIT_S, RESUME_S, AGAIN_S = 60.0, 3600.0, 2.0
OVER = 409
_PROCESS = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Harness:
    """As a context manager. At its end it gives back the sessions that nobody sealed, and the run asks for them again.
    Threads may share it, each with a loop over `sessions` of its own.

    url: of the gateway. token: of a source of the run, with the scope `sessions`. name: of this harness; the next one
    of the same name finds the sessions that this one left open. Without a name the next one on this machine does, once
    this process has ended. wait_s: seconds without an answer of the gateway. resume_s: the same of a run that its user
    has interrupted.

    Every method raises AccessDenied, RunNotFound, InvalidValue, and LogUnavailable after these seconds.
    """

    def __init__(
        self,
        url: str,
        run: str,
        token: str,
        *,
        name: str = "",
        wait_s: float = WAIT_S,
        resume_s: float = RESUME_S,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if ":" in name or not name.isascii():
            raise InvalidValue(f"a harness cannot be called {name!r}: ASCII, without a colon")
        self._http = HarnessHttp(url, f"/v1/runs/{run}/sessions", token, Patience(wait_s, resume_s), transport)
        self._name, self._owner = name, name or _PROCESS
        self._lock, self._left = threading.Lock(), list[HarnessSession]()
        self._has_looked = False
        self._given: dict[str, HarnessSession] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        why = "its harness ended without a seal" if kind is None else f"{kind.__name__}: {error}"
        with contextlib.suppress(SlimeEventsError):  # a gateway that is away: what is open falls idle
            for session in [*self._given.values()]:
                session.give_back(why)
        self.close()

    def close(self) -> None:
        """Let go of connections. Sessions that are open stay open."""
        self._http.close()

    def sessions(self, group: str | None = None) -> Iterator[HarnessSession]:
        """One after the other, until the run is over. group: of this one alone.

        The first ones are those that an earlier harness left open before their first turn. Those that it left in the
        middle are given back.
        """
        while (session := self._next_left()) is not None:
            if session.turns:
                session.give_back("its harness was lost")
            else:
                yield session
        while (session := self.open(group)) is not None:
            yield session

    def open(self, group: str | None = None) -> HarnessSession | None:
        """The next session, once a rollout waits for an agent; None where the run is over."""
        wish = {"wait_s": OPEN_S} | ({} if group is None else {"group": group})
        return self._open(wish, f"{self._owner}:{secrets.token_hex(8)}")

    def lost(self) -> list[HarnessSession]:
        """The sessions that an earlier harness left open, to go on with by hand: `sessions` then passes over them."""
        with self._lock:
            self._has_looked, self._left = True, []
            return self._find()

    def _next_left(self) -> HarnessSession | None:
        with self._lock:
            if not self._has_looked:
                self._left, self._has_looked = self._find(), True
            return self._left.pop(0) if self._left else None

    def _find(self) -> list[HarnessSession]:
        found = [one for one in self._listed() if self._is_lost(one.key)]
        opened = [self._open({}, one.key, turns=one.turns) for one in found]
        return [one for one in opened if one is not None]

    def _listed(self) -> Iterator[ListedSession]:
        after = ""
        while True:
            page = msgspec.json.decode(_checked(self._http.listed(after)), type=SessionList)
            if page.over and not page.interrupted:
                return
            yield from page.sessions
            if not (after := page.next):
                return

    def _is_lost(self, key: str) -> bool:
        owner, _, own = key.rpartition(":")
        if not own or key in self._given:
            return False
        if self._name or owner == self._owner:
            return bool(self._name) and owner == self._owner
        host, pid, process = (*owner.split(":"), "", "")[:3]
        is_here = host == socket.gethostname() and pid.isdecimal() and bool(process)
        return is_here and (int(pid) == os.getpid() or not _lives(int(pid)))

    def _open(self, wish: dict[str, Any], key: str, turns: int = 0) -> HarnessSession | None:
        while (said := self._http.open(wish, key)).status == TOO_MANY:
            time.sleep(said.again_s or AGAIN_S)
        if said.status == OVER:
            return None
        opened = msgspec.json.decode(_checked(said), type=OpenedSession)
        session = self._given[key] = HarnessSession(opened, self._http, turns, lambda: self._given.pop(key, None))
        return session


def _checked(said: Said) -> bytes:
    if said.status < 300:
        return said.body
    kinds = {401: AccessDenied, 403: AccessDenied, 404: RunNotFound}
    raise kinds.get(said.status, InvalidValue)(f"the gateway says {said.status}: {said.reason}")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
