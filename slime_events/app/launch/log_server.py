"""`LogServer`: the NATS server with a run's log, which is the run's own server or a server of the user's."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from schemas.errors import SlimeEventsError
from slime_events.app.launch.run_lock import MARK, Holder
from slime_events.core.run.orphans import end_orphans
from slime_events.core.run.run_folder import RunFolder
from storage.cancellation import end_all
from storage.jetstream.address import NatsAddress, NatsPlace
from storage.jetstream.log import JetStreamLog
from storage.nats.accounts import Access
from storage.nats.ports import HOST
from storage.nats.server import NatsServer
from storage.open_log import own_server, record_place

OPEN_DEADLINE_S = 30.0
LOOK_S = 0.2
"""Seconds between two checks of the server, and between two attempts to start it."""


class LogServer:
    """Starts and restarts the run's own NATS server, or connects to the user's.

    place: the user's server; None for the run's own. note: takes messages for the user. agents: see `guard`. host:
    address on which the run's own listens.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: str,
        place: NatsPlace | None,
        note: Callable[[str], None],
        *,
        agents: bool = False,
        host: str = HOST,
    ) -> None:
        self._folder, self._run, self._place, self._note = folder, run, place, note
        self._agents, self._host = agents, host
        self._server: NatsServer | None = None
        self._noted = set[str]()

    @contextlib.asynccontextmanager
    async def running(self, before: Holder | None) -> AsyncIterator[NatsAddress]:
        """Keep the server running while inside; yields its address.

        before: a launcher that was killed, whose processes are ended.
        """
        if before is not None:
            # Keep the server with the log. Other processes could still write to the log.
            server = NatsServer.attach(self._folder.nats)
            spare = (server.pid,) if server else ()
            count = await asyncio.to_thread(end_orphans, before.mark, spare, variable=MARK)
            if count:
                self._note(f"ended {count} processes left by launcher {before.pid}, which was killed")
        if self._place is not None:
            address = self._place.address()
            record_place(self._folder.path, self._place)
            yield address
            return
        self._server = await own_server(self._folder.path, self._run, agents=self._agents, host=self._host)
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
        """Keep the server running while inside; yields its address and the run's log.

        before: see `running`. create, replicas: for a new log. archive_url: archive of a new log that may remove
        events.
        """
        async with self.running(before) as address:
            log = await JetStreamLog.open(
                address,
                self._run,
                create=create,
                replicas=replicas,
                archive_url=archive_url,
                deadline_s=OPEN_DEADLINE_S,
                on_wait=self._note,
            )
            if self._server is not None:
                self._server.stage_in_memory()
            try:
                if not create:
                    await log.widen()
                yield address, log
            finally:
                await log.close()

    async def check(self) -> None:
        """If the run's own server has died, start it again with its folder and port, unless a reader was first.

        Its clients wait for that port meanwhile. Notes each message about an outage once. Raises as `own_server`.
        """
        if self._server is None or self._server.alive:
            return
        self._note_once(f"the NATS server {self._server.pid} of this run has died: starting it again")
        self._server = await own_server(
            self._folder.path, self._run, agents=self._agents, port=self._server.port, host=self._server.host
        )
        self._note_once(f"NATS is running again at {self._server.url}; it has all acked events")
        self._noted.clear()

    def _note_once(self, news: str) -> None:
        if news not in self._noted:
            self._noted.add(news)
            self._note(news)

    async def _keep(self) -> None:
        """Restart the server whenever it dies."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.check()
            except (SlimeEventsError, OSError) as error:
                self._note_once(f"cannot start the NATS server of this run, trying again: {error}")
