"""`HarnessHttp`: the requests of a harness to its gateway. Each is sent again until it is answered.

no answer, 5xx, 429     -> again, after Retry-After or a pause that doubles, for `wait_s` seconds at most
503 of a run that its user interrupted, and then no answer -> again, for `resume_s` seconds at most
everything else         -> an answer
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from schemas.errors import LogUnavailable, MissingPart
from schemas.outside_sessions import SessionList

PAUSE_S, MOST_PAUSE_S = 0.25, 5.0
OPEN_S = 30.0
"""For which a gateway may wait for a rollout before it answers."""
TIMEOUT_S = 2 * OPEN_S
TOO_MANY, AWAY = 429, 503
log = logging.getLogger(__name__)


class Said(NamedTuple):
    """An answer; status 0: there was none. again_s: when to come again, if it says so."""

    status: int
    body: bytes
    again_s: float | None = None

    @property
    def reason(self) -> str:
        """Of a refusal."""
        try:
            return str(msgspec.json.decode(self.body)["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return self.body[:200].decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds without an answer: of a gateway, and of a run that was interrupted."""

    wait_s: float
    resume_s: float


class HarnessHttp:
    """sessions: the path of the run's sessions. token: of a source. transport: of httpx, in the place of its own."""

    def __init__(self, url: str, sessions: str, token: str, patience: Patience, transport: Any = None) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingPart("Harness needs httpx: pip install 'slime-events[client]'") from error
        self._sessions, self._token, self._patience = sessions, token, patience
        self._lost, self._is_interrupted = httpx.TransportError, False
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S, transport=transport, limits=limits)

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def open(self, wish: Any, key: str) -> Said:
        """Ask for a session. Raises LogUnavailable."""
        return self.ask("POST", self._sessions, self._token, wish, headers={"Idempotency-Key": key}, waits=False)

    def listed(self, after: str) -> Said:
        """Ask for open sessions. Raises LogUnavailable."""
        return self.ask("GET", f"{self._sessions}?open&after={after}", self._token)

    def ask(
        self,
        method: str,
        path: str,
        bearer: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        waits: bool = True,
        wait_s: float | None = None,
    ) -> Said:
        """waits: 429 is no answer. wait_s: of this request, whatever was interrupted. Raises LogUnavailable."""
        began, pause = time.monotonic(), PAUSE_S
        given = {"authorization": f"Bearer {bearer}", "content-type": "application/json", **(headers or {})}
        data = None if body is None else msgspec.json.encode(body)
        while True:
            said = self._send(method, path, given, data)
            if 0 < said.status < 500 and not (waits and said.status == TOO_MANY):
                self._is_interrupted = False
                return said
            if said.status == AWAY:
                self._is_interrupted = self._asks_whether_interrupted()
            patience = self._patience.resume_s if self._is_interrupted else self._patience.wait_s
            patience = patience if wait_s is None else wait_s
            if time.monotonic() - began > patience:
                raise LogUnavailable(f"{method} {path} was not answered for {patience:g} s: {said.reason}")
            if pause == PAUSE_S:
                log.info("%s %s is sent again: %s", method, path, said.reason)
            time.sleep(min(said.again_s or pause, max(0.0, patience)))
            pause = min(2 * pause, MOST_PAUSE_S)

    def _asks_whether_interrupted(self) -> bool:
        said = self._send("GET", f"{self._sessions}?open", {"authorization": f"Bearer {self._token}"}, None)
        return said.status == 200 and msgspec.json.decode(said.body, type=SessionList).interrupted

    def _send(self, method: str, path: str, headers: Mapping[str, str], data: bytes | None) -> Said:
        try:
            answer = self._http.request(method, path, headers=headers, content=data)
        except self._lost as error:
            return Said(0, f"{type(error).__name__}: {error}".encode())
        again = answer.headers.get("retry-after", "")
        return Said(answer.status_code, answer.content, float(again) if again.isdecimal() else None)
