"""`LogServer`: the NATS server that holds a run's log: one of ours in the run's folder, or somebody else's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from schemas.errors import SlimeEventsError
from slime_events.app.launch.run_lock import MARK, Holder
from slime_events.core.run.orphans import end_orphans
from slime_events.core.run.run_folder import RunFolder
from storage.cancellation import end_all
from storage.jetstream.address import NatsAddress, NatsPlace
from storage.jetstream.log import JetStreamLog
from storage.nats.accounts import Access
from storage.nats.server import NatsServer
from storage.open_log import own_server, record_place

OPEN_DEADLINE_S = 30.0
LOOK_S = 0.2
"""Seconds between looks at whether it lives, and between two tries to start one that cannot be started."""


class LogServer:
    """place: a server that is not ours; None for one of our own. note: says what happens to it. agents: see `guard`."""

    def __init__(
        self,
        folder: RunFolder,
        run: str,
        place: NatsPlace | None,
        note: Callable[[str], None],
        *,
        agents: bool = False,
    ) -> None:
        self._folder, self._run, self._place, self._note, self._agents = folder, run, place, note, agents
        self._server: NatsServer | None = None
        self._told = set[str]()

    @contextlib.asynccontextmanager
    async def running(self, before: Holder | None) -> AsyncIterator[NatsAddress]:
        """Its address, while inside. before: the launcher that was killed; what it left is ended."""
        if before is not None:
            # The server that has the log is kept: whatever else is left could still write to it.
            server = NatsServer.attach(self._folder.nats)
            spare = (server.pid,) if server else ()
            count = await asyncio.to_thread(end_orphans, before.mark, spare, variable=MARK)
            if count:
                self._note(f"ended {count} processes that launcher {before.pid} had left when it was killed")
        if self._place is not None:
            address = self._place.address()
            record_place(self._folder.path, self._place)
            yield address
            return
        self._server = await own_server(self._folder.path, self._run, agents=self._agents)
        keeping = asyncio.create_task(self._keep(), name="keep-nats")
        try:
            yield self._server.address(Access.ROLES)
        finally:
            await end_all(keeping)
            await self._server.stop()

    @contextlib.asynccontextmanager
    async def log(
        self, before: Holder | None, *, create: bool, replicas: int = 1, archive_url: str | None = None
    ) -> AsyncIterator[tuple[NatsAddress, JetStreamLog]]:
        """The address of the server, and the run's log on it, while inside. before: see `running`. archive_url: of a
        new log that is to let events go.
        """
        async with self.running(before) as address:
            made: dict[str, Any] = {"create": create, "replicas": replicas, "archive_url": archive_url}
            log = await JetStreamLog.open(address, self._run, **made, deadline_s=OPEN_DEADLINE_S, on_wait=self._note)
            if self._server is not None:
                self._server.stage_in_memory()
            try:
                if not create:
                    await log.widen()
                yield address, log
            finally:
                await log.close()

    async def check(self) -> None:
        """A server of ours that died is started again on its folder and port, by us or by a reader who was first.

        Everybody waits for it meanwhile, at that port. Each news of one outage is noted once. Raises as `own_server`.
        """
        if self._server is None or self._server.alive:
            return
        self._tell(f"the NATS server {self._server.pid} of this run has died: starting it again")
        self._server = await own_server(self._folder.path, self._run, agents=self._agents, port=self._server.port)
        self._tell(f"NATS is back at {self._server.url}; everything acked is there")
        self._told.clear()

    def _tell(self, news: str) -> None:
        if news not in self._told:
            self._told.add(news)
            self._note(news)

    async def _keep(self) -> None:
        """Whatever waits for the log, the launcher itself too, has it back."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.check()
            except (SlimeEventsError, OSError) as error:
                self._tell(f"the NATS server of this run cannot be started, and is tried again: {error}")
