"""`LiveRun`: a gateway's connection to its run: to the inbox while the run is on, and to the log always."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Self

import nats
import nats.errors
from nats.aio.client import Client

from schemas.errors import LogUnavailable
from schemas.inbox import KIND, PROMPTS, SENDER, InboxReply
from schemas.subjects import inbox
from slime_events.client.inbox import ROOM, NobodyListens, ask_inbox
from slime_events.core.run.run_folder import RunFolder
from slime_events.loop.prompts.offered import OFF_BYTES, conducted_until, offer
from storage.jetstream.address import NatsAddress, refusal_of
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog, Readable
from storage.nats.accounts import Access
from storage.open_log import live_address, open_run_log

CONNECT_S = 2.0
LOG_S = 5.0
GATEWAY = "gateway"


class NotOn(LogUnavailable):
    """The run is off: it has no NATS server."""


class LiveRun:
    """Connects to a run, as a context manager.

    A resumed run may have its server at another address, so the address is read again whenever there is no connection.
    reply_s: seconds for the run to answer. creds: credentials file of a gateway, for a run on the user's own NATS
    server; by default the credentials that the run was started with.
    """

    def __init__(self, folder: RunFolder, *, reply_s: float = 30.0, creds: str | None = None) -> None:
        self.name, self._folder, self._reply_s = folder.log_name(), folder, reply_s
        self._creds = creds
        self._client: Client | None = None
        self._log: JetStreamLog | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def send(self, data: bytes, sender: str, kind: str = PROMPTS) -> InboxReply:
        """Send a message to the run's inbox on behalf of a source. If the run has no conductor, it goes to the log.

        Raises LogUnavailable, InboxFull, RunIsOver, DeadlineExceeded.
        """
        try:
            client, subject = await self._connected(), inbox(self.name, "gateway")
            return await ask_inbox(client, self.name, subject, data, self._reply_s, {SENDER: sender, KIND: kind})
        except (NobodyListens, NotOn) as error:
            if isinstance(error, NotOn):
                async with open_run_log(self._folder.path, self.name, creds=self._creds) as log:
                    return await self._offer(log, data, sender, kind)
            assert self._log is not None
            return await self._offer(self._log, data, sender, kind)

    async def _offer(self, log: EventLog, data: bytes, sender: str, kind: str) -> InboxReply:
        """Leave a message in the log for the run's next conductor. Raises LogUnavailable, InboxFull, RunIsOver."""
        if kind == PROMPTS:
            return await offer(log, data, sender, GATEWAY)
        await conducted_until(log)
        raise LogUnavailable(f"run {self.name} is off: it accepts {kind} only while it is on")

    async def max_bytes(self) -> int:
        """Return the limit of a message in bytes. Raises LogUnavailable."""
        try:
            return int((await self._connected()).max_payload) - ROOM
        except NotOn:
            return OFF_BYTES

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[Readable]:
        """Open the run's log, whether the run is on or off. Raises StorageError."""
        try:
            await self._connected()
        except LogUnavailable:  # the run is off: start a server to read its log
            async with open_run_log(self._folder.path, self.name, creds=self._creds) as log:
                yield log
            return
        assert self._log is not None
        yield self._log

    async def events(self) -> EventLog:
        """Return the log of a run that is on, for appends. It is another object after a new connection.

        Raises LogUnavailable.
        """
        await self._connected()
        assert self._log is not None
        return self._log

    async def _connected(self) -> Client:
        async with self._opening:
            if self._client is not None and self._client.is_connected:
                return self._client  # still the run's server: a run that moves to another server stops this one
            address = live_address(self._folder.path, Access.GATEWAY, self._creds)
            if address is None:
                await self._close()
                raise NotOn(f"run {self.name} is off")
            await self._close()
            return await self._open(address)

    async def _open(self, address: NatsAddress) -> Client:
        try:
            client: Client = await nats.connect(
                **address.options(), connect_timeout=CONNECT_S, allow_reconnect=False, name="slime-events-gateway"
            )
        except (nats.errors.Error, OSError, TimeoutError) as error:
            refusal = refusal_of(error, address.url)
            raise refusal or LogUnavailable(f"no NATS server answers at {address.url}: is the run on?") from error
        self._client = client
        self._log = await JetStreamLog.open(address, self.name, deadline_s=LOG_S, create=False, retry_s=LOG_S)
        return client

    async def _close(self) -> None:
        client, log, self._client, self._log = self._client, self._log, None, None
        if log is not None:
            await log.close()
        if client is not None:
            await client.close()
