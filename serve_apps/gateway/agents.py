"""`AgentDesk`: the sessions of a run's agents, over whatever log the run has now."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from schemas.errors import ConfigError
from serve_apps.agents.keys import SessionKeys
from serve_apps.gateway.refusals import Refused
from storage.log import EventLog

if TYPE_CHECKING:
    from serve_apps.agents.sessions import Sessions
    from serve_apps.agents.setup import AgentSetup


class AgentDesk:
    """As a context manager. events: the run's log while it is on; another object after it was opened anew. setup: of
    the run as this log has it.
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
        """Raises LogUnavailable where the run is not on, Refused where agents do not make its rollouts."""
        from serve_apps.agents.run_log import RunLog
        from serve_apps.agents.sessions import Sessions

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
                place = RunLog(
                    events, setup.fetch, setup.offload, attempts=rules.attempts, tells_early=rules.engines == 1
                )
                place = await self._stack.enter_async_context(place)
                self._sessions = await self._stack.enter_async_context(Sessions(place, setup))
            return self._sessions


@dataclass(frozen=True, slots=True)
class AgentAccess:
    """What the routes need of it. keys: of the run's sessions."""

    desk: AgentDesk
    keys: SessionKeys
