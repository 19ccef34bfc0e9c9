"""`AgentDesk`: the sessions of a run's agents, on the run's current log."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from schemas.errors import ConfigError
from serve_apps.http.gateway.refusals import Refused
from serve_apps.rollouts.agents.keys import SessionKeys
from storage.log import EventLog

if TYPE_CHECKING:
    from serve_apps.rollouts.agents.sessions import Sessions
    from serve_apps.rollouts.agents.setup import AgentSetup


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
                    events, setup.fetch, setup.offload, attempts=rules.attempts, tells_early=rules.engines == 1
                )
                run_log = await self._stack.enter_async_context(run_log)
                self._sessions = await self._stack.enter_async_context(Sessions(run_log, setup))
            return self._sessions


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """Sessions of a run and their keys, for the routes."""

    desk: AgentDesk
    keys: SessionKeys
