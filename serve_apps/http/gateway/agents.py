"""`AgentAccess`: a run's agents at a gateway: their sessions on the run's current log (`AgentDesk`), and their keys.

A session has two keys: one for its agent, and one for its harness that the agent never gets. Keys are derived from the
session's name and a secret that the run's gateways share. So any gateway can create and check them, and no event
contains one.
"""

import asyncio
import base64
import contextlib
import enum
import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from schemas.errors import ConfigError
from serve_apps.http.gateway.refusals import Refused
from slime_events.core.telemetry.telemetry import Telemetry, TracedLog, Tracing
from storage.log import EventLog
from storage.nats.accounts import write_private

if TYPE_CHECKING:
    from serve_apps.rollouts.agents.sessions import Sessions
    from serve_apps.rollouts.agents.setup import AgentSetup

FILE, NAME = "session-secret", "gateway"
log = logging.getLogger(__name__)


class AgentDesk:
    """Creates the sessions of a run, and new ones after the log was opened again; a context manager.

    events: returns the run's log while the run is on; a log that was opened again is a new object. setup: returns the
    setup of the run in this log.
    """

    def __init__(
        self, events: Callable[[], Awaitable[EventLog]], setup: "Callable[[EventLog], Awaitable[AgentSetup]]"
    ) -> None:
        self._events, self._setup = events, setup
        self._stack, self._opening = contextlib.AsyncExitStack(), asyncio.Lock()
        self._log: EventLog | None = None
        self._sessions: Sessions | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def sessions(self) -> "Sessions":
        """Return the sessions. Raises LogUnavailable if the run is off, Refused if its rollouts do not use agents."""
        from serve_apps.rollouts.agents.run_log import RunLog
        from serve_apps.rollouts.agents.sessions import Sessions

        async with self._opening:
            events = await self._events()
            if self._sessions is None or events is not self._log:
                await self._stack.aclose()
                self._sessions, self._log = None, events
                try:
                    setup = await self._setup(events)
                except ConfigError as error:
                    raise Refused(404, str(error)) from error
                rules = setup.rules
                run_log = RunLog(
                    self._traced(events, setup.tracing),
                    setup.fetch,
                    setup.offload,
                    attempts=rules.attempts,
                    tells_early=rules.engines == 1,
                    trace_share=setup.tracing.share,
                )
                run_log = await self._stack.enter_async_context(run_log)
                self._sessions = await self._stack.enter_async_context(Sessions(run_log, setup))
            return self._sessions

    def _traced(self, events: EventLog, tracing: Tracing) -> EventLog:
        """Return the log with its spans exported. An endpoint that cannot be used refuses no session."""
        if not tracing.share:
            return events
        try:
            telemetry = Telemetry.start(NAME, events.run, *tracing)
        except ConfigError as error:
            log.warning("turns and sessions at this gateway are not traced: %s", error)
            return events
        self._stack.push_async_callback(asyncio.to_thread, telemetry.shutdown)
        return TracedLog(events, telemetry)


class Capability(enum.StrEnum):
    """Use of a key. agent: make turns. control: read the state and seal the session."""

    AGENT = "agent"
    CONTROL = "control"


class SessionKeys:
    """Derives keys. secret: shared by the run's gateways."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, session: str, capability: Capability) -> str:
        """Return the key: sha256 HMAC, base64url without padding."""
        digest = hmac.digest(self._secret, f"{capability}:{session}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def check(self, session: str, key: str, capability: Capability) -> bool:
        """Return whether the key is the session's, in a time that does not depend on the key."""
        return hmac.compare_digest(self.of(session, capability).encode(), key.encode())

    def session_of(self, bearer: str) -> str | None:
        """Return the session of a bearer token `<session>.<agent key>`; None if the token is not valid."""
        session, point, key = bearer.rpartition(".")
        return session if point and self.check(session, key, Capability.AGENT) else None


def session_keys(folder: Path) -> SessionKeys:
    """Return keys with the secret in a private file of the folder. The first gateway creates the file."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / FILE
    if not path.is_file():
        with contextlib.suppress(FileExistsError):  # another gateway created it first
            write_private(path, secrets.token_urlsafe(32), new=True)
    return SessionKeys(path.read_text(encoding="ascii").encode())


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """Sessions of a run and their keys, for the routes."""

    desk: AgentDesk
    keys: SessionKeys
