"""`LiveRun`: a run as its gateway reaches it: its inbox while it is on, and its log always."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

import nats
import nats.errors

from schemas.errors import LogUnavailable
from schemas.inbox import KIND, PROMPTS, SENDER, InboxReply
from schemas.subjects import inbox
from slime_events.core.run.run_folder import RunFolder
from slime_events.loop.prompts.offered import OFF_BYTES, conducted_until, offer
from slime_events.loop.prompts.outside import ROOM, NobodyListens, ask_inbox
from storage.jetstream.address import NatsAddress, refusal_of
from storage.jetstream.log import JetStreamLog
from storage.log import EventLog, Readable
from storage.nats.accounts import Access
from storage.open_log import live_address, open_run_log

CONNECT_S = 2.0
LOG_S = 5.0
GATEWAY = "gateway"


class NotOn(LogUnavailable):
    """No server of the run's lives."""


class LiveRun:
    """As a context manager. A run that is resumed may have its server elsewhere: it is looked for at each message that
    finds no connection. reply_s: seconds for the run to answer. creds: a file of a gateway's credentials, for a run on
    a server of the user's own; by default those that the run was given.
    """

    def __init__(self, folder: RunFolder, *, reply_s: float = 30.0, creds: str | None = None) -> None:
        self.name, self._folder, self._reply_s = folder.log_name(), folder, reply_s
        self._creds = creds
        self._client: Any = None
        self._log: JetStreamLog | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def send(self, data: bytes, sender: str, kind: str = PROMPTS) -> InboxReply:
        """A message of a sender's to the run's inbox; where nobody conducts the run, to its log. Raises LogUnavailable,
        InboxFull, RunIsOver, DeadlineExceeded.
        """
        try:
            client, subject = await self._connected(), inbox(self.name, "gateway")
            return await ask_inbox(client, self.name, subject, data, self._reply_s, {SENDER: sender, KIND: kind})
        except (NobodyListens, NotOn) as error:
            if isinstance(error, NotOn):
                async with open_run_log(self._folder.path, self.name) as log:
                    return await self._left_with(log, data, sender, kind)
            assert self._log is not None
            return await self._left_with(self._log, data, sender, kind)

    async def _left_with(self, log: EventLog, data: bytes, sender: str, kind: str) -> InboxReply:
        """A message for whoever conducts the run next. Raises LogUnavailable, InboxFull, RunIsOver."""
        if kind == PROMPTS:
            return await offer(log, data, sender, GATEWAY)
        await conducted_until(log)
        raise LogUnavailable(f"nobody conducts run {self.name} now: it takes {kind} while it is on")

    async def max_bytes(self) -> int:
        """Of a message. Raises LogUnavailable."""
        try:
            return int((await self._connected()).max_payload) - ROOM
        except NotOn:
            return OFF_BYTES

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[Readable]:
        """The run's log, whether it is on or not. Raises StorageError."""
        try:
            await self._connected()
        except LogUnavailable:  # it is not on: a server is started to read it
            async with open_run_log(self._folder.path, self.name, creds=self._creds) as log:
                yield log
            return
        assert self._log is not None
        yield self._log

    async def events(self) -> EventLog:
        """The run's log while it is on, to append to; another object where it had to be opened anew. Raises
        LogUnavailable.
        """
        await self._connected()
        assert self._log is not None
        return self._log

    async def _connected(self) -> Any:
        async with self._opening:
            if self._client is not None and self._client.is_connected:
                return self._client  # a run whose server is another one has stopped this one
            address = live_address(self._folder.path, Access.GATEWAY, self._creds)
            if address is None:
                await self._close()
                raise NotOn(f"run {self.name} is not on")
            await self._close()
            await self._open(address)
            return self._client

    async def _open(self, address: NatsAddress) -> None:
        try:
            self._client = await nats.connect(
                **address.options(), connect_timeout=CONNECT_S, allow_reconnect=False, name="slime-events-gateway"
            )
        except (nats.errors.Error, OSError, TimeoutError) as error:
            refusal = refusal_of(error, address.url)
            raise refusal or LogUnavailable(f"no NATS server answers at {address.url}: is the run on?") from error
        self._log = await JetStreamLog.open(address, self.name, deadline_s=LOG_S, create=False, retry_s=LOG_S)

    async def _close(self) -> None:
        client, log, self._client, self._log = self._client, self._log, None, None
        if log is not None:
            await log.close()
        if client is not None:
            await client.close()
