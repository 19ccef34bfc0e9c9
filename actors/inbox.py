"""`Inbox`: takes prompts from outside producers and answers each message; and says what became of them.

JSON on `slime.<run>.inbox.prompts`, one prompt or a list; the reply names the groups, or every invalid field. A
message is accepted whole or not at all. The sender's key makes it idempotent: a repeated key is the same group.
Keys on `slime.<run>.inbox.groups` are answered with the fate of their groups. On `slime.<run>.inbox.gateway` only a
gateway may send: a header says in whose name (storage/nats/accounts.py).
"""

import logging
from collections.abc import Callable
from typing import Any, Self

import msgspec
import nats
import nats.errors

from actors.conductor import Offload
from schemas.errors import EventTooLarge, SlimeEventsError, UnwritableEvent
from schemas.inbox import SENDER, FieldError, InboxFates, InboxQuestion, InboxReply
from schemas.prompts import PromptSubmitted
from schemas.subjects import inbox
from slime_events.analysis.model.fates import fates_of
from slime_events.core.run.participant import Participant
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.inbox_message import WHOLE, field_error, read_message
from slime_events.loop.prompts.prompt import Problem
from storage.jetstream.address import NatsAddress
from storage.log import Append, check_size, once

log = logging.getLogger(__name__)


class Inbox:
    """A subscription on the run's inbox, as a context manager. offload: where long prompts' arrays go. room: how many
    more prompts the run takes now; None: any number.
    """

    def __init__(
        self,
        worker: Participant,
        feed: PromptFeed,
        server: NatsAddress,
        offload: Offload | None = None,
        room: Callable[[], int] | None = None,
    ) -> None:
        self._worker, self._feed, self._server, self._offload = worker, feed, server, offload
        self._room = room
        self._client: Any = None

    async def __aenter__(self) -> Self:
        self._client = await nats.connect(
            **self._server.options(), max_reconnect_attempts=-1, reconnect_time_wait=0.1, name="slime-events-inbox"
        )
        await self._client.subscribe(inbox(self._worker.log.run), cb=self._receive)
        await self._client.subscribe(inbox(self._worker.log.run, "gateway"), cb=self._receive_for)
        await self._client.subscribe(inbox(self._worker.log.run, "groups"), cb=self._tell)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._client.drain()
        except nats.errors.Error:  # not connected now, so nobody waits for a reply
            await self._client.close()

    async def _receive_for(self, message: Any) -> None:
        """For whom a gateway names. Only these come from a gateway: another sender's header is no proof."""
        await self._receive(message, (message.headers or {}).get(SENDER, ""))

    async def _receive(self, message: Any, sender: str = "") -> None:
        try:
            reply = await self.accept(message.data, (message.headers or {}).get("traceparent"), sender)
        except SlimeEventsError as error:
            reply = InboxReply(accepted=False, errors=(FieldError(0, "", f"not accepted now, try again: {error}"),))
            log.warning("a message to the inbox was not accepted: %s", error)
        if message.reply:
            await message.respond(msgspec.json.encode(reply))

    async def _tell(self, message: Any) -> None:
        try:
            reply = await fates_of(self._worker.log, msgspec.json.decode(message.data, type=InboxQuestion))
        except msgspec.DecodeError as error:
            reply = InboxFates(errors=(field_error(0, error, WHOLE),))
        except SlimeEventsError as error:
            reply = InboxFates(errors=(FieldError(0, "", f"not known now, try again: {error}"),))
        if message.reply:
            await message.respond(msgspec.json.encode(reply))

    async def accept(self, data: bytes, traceparent: str | None = None, sender: str = "") -> InboxReply:
        """Append the prompts of a message, or reply with its errors. traceparent: the sender's span, linked to ours."""
        if self._room is not None and self._room() <= 0:
            full = FieldError(0, "", "as many prompts wait as the run takes (--max-waiting-prompts); try again")
            return InboxReply(accepted=False, errors=(full,), full=True)
        prompts, errors = read_message(data)
        groups: list[str] = []
        events: dict[str, tuple[int, PromptSubmitted]] = {}  # by group: a key twice in one message is one prompt
        for index, prompt in prompts:
            made = self._feed.from_inbox(prompt, sender)
            if isinstance(made, Problem):
                errors.append(FieldError(index, "prompt", f"{made.reason.value}: {made.message}"))
            else:
                groups.append(made.group)
                events.setdefault(made.group, (index, made))
        appends: list[Append] = []
        for index, event in () if errors else events.values():
            stored = await self._offload(event) if self._offload else event
            appends.append(append := once(self._worker.enclose(stored, traceparent=traceparent)))
            try:
                check_size(append, len(append.encoded()))
            except (EventTooLarge, UnwritableEvent) as error:
                errors.append(FieldError(index, "prompt", str(error)))
        if errors:
            return InboxReply(accepted=False, errors=tuple(errors))
        try:
            await self._worker.log.append(appends)
        except EventTooLarge as error:  # all together
            return InboxReply(accepted=False, errors=(FieldError(0, WHOLE, str(error)),))
        return InboxReply(accepted=True, groups=tuple(groups))
