"""`HarnessHttp`: the requests of a harness to its gateway, with retries.

no reply, 5xx, 429   -> retry after Retry-After or a pause that doubles, for at most `wait_s` seconds
503 from a run that its user interrupted, and no reply after it -> retry for at most `resume_s` seconds
any other reply      -> return it
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from schemas.doc import doc
from schemas.errors import LogUnavailable, MissingPart
from schemas.outside_sessions import SessionList

if TYPE_CHECKING:
    import httpx

PAUSE_S, MOST_PAUSE_S = 0.25, 5.0
OPEN_S = 30.0
"""Seconds that a gateway may wait for a rollout before it replies."""
TIMEOUT_S = 2 * OPEN_S
TOO_MANY, AWAY = 429, 503
log = logging.getLogger(__name__)


class Reply(NamedTuple):
    """A gateway's reply."""

    status: Annotated[int, doc("HTTP status; 0 if no reply came")]
    body: Annotated[bytes, doc("Body of the reply; without a reply, the error as text")]
    again_s: Annotated[float | None, doc("Seconds until a retry (Retry-After), if the gateway sent any")] = None

    @property
    def error(self) -> str | None:
        """Error message in the body; None if it has none."""
        try:
            return str(msgspec.json.decode(self.body)["error"])
        except (msgspec.DecodeError, KeyError, TypeError):
            return None

    @property
    def reason(self) -> str:
        """Reason of a refusal, or why no reply came."""
        if not self.status:
            return self.body.decode()
        error = self.error
        return self.body[:200].decode(errors="replace") if error is None else error


def reply_of(response: httpx.Response) -> Reply:
    """Return httpx's response as a reply."""
    again = response.headers.get("retry-after", "")
    return Reply(response.status_code, response.content, float(again) if again.isdecimal() else None)


def no_reply(error: Exception, where: str = "") -> Reply:
    """Return a reply with status 0 for a transport error."""
    return Reply(0, f"{where}{type(error).__name__}: {error}".encode())


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of a harness's retries."""

    wait_s: Annotated[float, doc("Seconds without a reply from the gateway")]
    resume_s: Annotated[float, doc("Seconds without a reply after the run's user interrupted it")]


class HarnessHttp:
    """HTTP client of a harness.

    sessions: path of the run's sessions. token: token of a source. transport: replaces httpx's own transport.
    """

    def __init__(
        self, url: str, sessions: str, token: str, patience: Patience, transport: httpx.BaseTransport | None = None
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingPart("Harness needs httpx: pip install 'slime-events[client]'") from error
        self._sessions, self._token, self._patience = sessions, token, patience
        self._lost, self._is_interrupted = httpx.TransportError, False
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S, transport=transport, limits=limits)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def open(self, request: Mapping[str, object], key: str) -> Reply:
        """Ask for a session. key: idempotency key. Raises LogUnavailable."""
        return self.ask("POST", self._sessions, self._token, request, headers={"Idempotency-Key": key}, waits=False)

    def listed(self, after: str) -> Reply:
        """Ask for a page of the open sessions. Raises LogUnavailable."""
        return self.ask("GET", f"{self._sessions}?open&after={after}", self._token)

    def ask(
        self,
        method: str,
        path: str,
        bearer: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        waits: bool = True,
        wait_s: float | None = None,
    ) -> Reply:
        """Send a request until the gateway replies. Raises LogUnavailable.

        waits: retry after a 429 too. wait_s: seconds to retry this request, in place of the harness's own limits.
        """
        began, pause = time.monotonic(), PAUSE_S
        every = {"authorization": f"Bearer {bearer}", "content-type": "application/json", **(headers or {})}
        data = None if body is None else msgspec.json.encode(body)
        while True:
            reply = self._send(method, path, every, data)
            if 0 < reply.status < 500 and not (waits and reply.status == TOO_MANY):
                self._is_interrupted = False
                return reply
            if reply.status == AWAY:
                self._is_interrupted = self._asks_whether_interrupted()
            patience = self._patience.resume_s if self._is_interrupted else self._patience.wait_s
            patience = patience if wait_s is None else wait_s
            if time.monotonic() - began > patience:
                raise LogUnavailable(f"{method} {path} got no reply for {patience:g} s: {reply.reason}")
            if pause == PAUSE_S:
                log.info("retrying %s %s: %s", method, path, reply.reason)
            time.sleep(min(reply.again_s or pause, max(0.0, patience)))
            pause = min(2 * pause, MOST_PAUSE_S)

    def _asks_whether_interrupted(self) -> bool:
        reply = self._send("GET", f"{self._sessions}?open", {"authorization": f"Bearer {self._token}"}, None)
        return reply.status == 200 and msgspec.json.decode(reply.body, type=SessionList).interrupted

    def _send(self, method: str, path: str, headers: Mapping[str, str], data: bytes | None) -> Reply:
        try:
            return reply_of(self._http.request(method, path, headers=headers, content=data))
        except self._lost as error:
            return no_reply(error)
