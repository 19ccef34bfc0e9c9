"""`Harness`: opens, seals and recovers the sessions of a run with --agents (docs/agents.md). It needs `httpx`."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Self

import msgspec

from schemas.errors import AccessDenied, InvalidValue, RunNotFound, SlimeEventsError
from schemas.outside_sessions import ListedSession, OpenedSession, SessionList
from slime_events.app.harness_http import OPEN_S, TOO_MANY, HarnessHttp, Patience, Reply
from slime_events.app.harness_session import HarnessSession

if TYPE_CHECKING:
    import httpx

WAIT_S, RESUME_S, AGAIN_S = 60.0, 3600.0, 2.0
OVER = 409
_PROCESS = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


class Harness:
    """A client that runs agents on sessions of a run. Use it as a context manager.

    At the end of its block, a harness gives back its unsealed sessions, and the run requests their rollouts again.
    Threads may share a harness, if each of them has its own loop over `sessions`.

    url: address of the gateway. token: token of a source of the run, with the scope `sessions`. name: name of this
    harness; the next harness of this name recovers the sessions that this one left open. Without a name, the next
    harness on this machine recovers them after this process has ended. wait_s: seconds to retry while the gateway does
    not reply. resume_s: seconds to retry after the run's user interrupted it.

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
            raise InvalidValue(f"a harness cannot have the name {name!r}: use ASCII without a colon")
        self._http = HarnessHttp(url, f"/v1/runs/{run}/sessions", token, Patience(wait_s, resume_s), transport)
        self._name, self._owner = name, name or _PROCESS
        self._lock, self._left = threading.Lock(), list[HarnessSession]()
        self._has_looked = False
        self._open_sessions: dict[str, HarnessSession] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        why = "its harness ended without a seal" if kind is None else f"{kind.__name__}: {error}"
        with contextlib.suppress(SlimeEventsError):  # if the gateway is away, open sessions end when they are idle
            for session in [*self._open_sessions.values()]:
                session.give_back(why)
        self.close()

    def close(self) -> None:
        """Close the connections. Open sessions stay open."""
        self._http.close()

    def sessions(self, group: str | None = None) -> Iterator[HarnessSession]:
        """Yield sessions until the run is over. group: only sessions of this group.

        Sessions that an earlier harness left open come first, if they have no turn yet. Those with turns are given
        back.
        """
        while (session := self._next_left()) is not None:
            if session.turns:
                session.give_back("its harness was lost")
            else:
                yield session
        while (session := self.open(group)) is not None:
            yield session

    def open(self, group: str | None = None) -> HarnessSession | None:
        """Wait for a rollout that needs an agent and return its session; None if the run is over."""
        request = {"wait_s": OPEN_S} | ({} if group is None else {"group": group})
        return self._open(request, f"{self._owner}:{secrets.token_hex(8)}")

    def lost(self) -> list[HarnessSession]:
        """Return the sessions that an earlier harness left open, to continue them; `sessions` then skips them."""
        with self._lock:
            self._has_looked, self._left = True, []
            return self._find()

    def _next_left(self) -> HarnessSession | None:
        with self._lock:
            if not self._has_looked:
                self._left, self._has_looked = self._find(), True
            return self._left.pop(0) if self._left else None

    def _find(self) -> list[HarnessSession]:
        lost = [listed for listed in self._listed() if self._is_lost(listed.key)]
        opened = [self._open({}, listed.key, turns=listed.turns) for listed in lost]
        return [session for session in opened if session is not None]

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
        if not own or key in self._open_sessions:
            return False
        if self._name or owner == self._owner:
            return bool(self._name) and owner == self._owner
        host, pid, process = (*owner.split(":"), "", "")[:3]
        is_here = host == socket.gethostname() and pid.isdecimal() and bool(process)
        return is_here and (int(pid) == os.getpid() or not _lives(int(pid)))

    def _open(self, request: Mapping[str, object], key: str, turns: int = 0) -> HarnessSession | None:
        while (reply := self._http.open(request, key)).status == TOO_MANY:
            time.sleep(reply.again_s or AGAIN_S)
        if reply.status == OVER:
            return None
        opened = msgspec.json.decode(_checked(reply), type=OpenedSession)
        session = HarnessSession(opened, self._http, turns, lambda: self._open_sessions.pop(key, None))
        self._open_sessions[key] = session
        return session


def _checked(reply: Reply) -> bytes:
    if reply.status < 300:
        return reply.body
    kinds = {401: AccessDenied, 403: AccessDenied, 404: RunNotFound}
    raise kinds.get(reply.status, InvalidValue)(f"the gateway replied {reply.status}: {reply.reason}")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process of another user
        return True
    return True
