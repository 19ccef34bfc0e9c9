"""`Inbox`: takes prompts from outside producers and answers each message.

JSON on `slime.<run>.inbox.prompts`, one prompt or a list; the reply names the groups, or every invalid field. A
message is accepted whole or not at all. The sender's key makes it idempotent: a repeated key is the same group.
"""

import logging
from typing import Any, Self

import msgspec
import nats
import nats.errors

from actors.conductor import Offload
from schemas.errors import EventTooLarge, SlimeEventsError, UnwritableEvent
from schemas.inbox import FieldError, InboxPrompt, InboxReply
from schemas.prompts import PromptSubmitted
from schemas.subjects import inbox
from slime_events.core.run.participant import Participant
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.prompts.prompt import Problem
from storage.jetstream.address import NatsAddress
from storage.log import once

log = logging.getLogger(__name__)


class Inbox:
    """A subscription on the run's inbox, as a context manager. offload: where long prompts' arrays go."""

    def __init__(
        self, worker: Participant, feed: PromptFeed, server: NatsAddress, offload: Offload | None = None
    ) -> None:
        self._worker, self._feed, self._server, self._offload = worker, feed, server, offload
        self._client: Any = None

    async def __aenter__(self) -> Self:
        self._client = await nats.connect(
            **self._server.options(), max_reconnect_attempts=-1, reconnect_time_wait=0.1, name="slime-events-inbox"
        )
        await self._client.subscribe(inbox(self._worker.log.run), cb=self._receive)
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._client.drain()
        except nats.errors.Error:  # not connected now, so nobody waits for a reply
            await self._client.close()

    async def _receive(self, message: Any) -> None:
        try:
            reply = await self.accept(message.data, (message.headers or {}).get("traceparent"))
        except (EventTooLarge, UnwritableEvent) as error:
            reply = InboxReply(accepted=False, errors=(FieldError(0, "", str(error)),))
        except SlimeEventsError as error:
            reply = InboxReply(accepted=False, errors=(FieldError(0, "", f"not accepted now, try again: {error}"),))
            log.warning("a message to the inbox was not accepted: %s", error)
        if message.reply:
            await message.respond(msgspec.json.encode(reply))

    async def accept(self, data: bytes, traceparent: str | None = None) -> InboxReply:
        """Append the prompts of a message, or reply with its errors. traceparent: the sender's span, linked to ours."""
        prompts, errors = read_message(data)
        groups: list[str] = []
        events: dict[str, PromptSubmitted] = {}  # by group: a key that is twice in one message is one prompt
        for index, prompt in prompts:
            made = self._feed.from_inbox(prompt)
            if isinstance(made, Problem):
                errors.append(FieldError(index, "prompt", f"{made.reason.value}: {made.message}"))
            else:
                groups.append(made.group)
                events.setdefault(made.group, made)
        if errors:
            return InboxReply(accepted=False, errors=tuple(errors))
        stored = [await self._offload(event) if self._offload else event for event in events.values()]
        await self._worker.log.append([once(self._worker.enclose(event, traceparent=traceparent)) for event in stored])
        return InboxReply(accepted=True, groups=tuple(groups))


def read_message(data: bytes) -> tuple[list[tuple[int, InboxPrompt]], list[FieldError]]:
    """The prompts of a message by index, and its errors by index and field."""
    try:
        many = data.lstrip()[:1] == b"["
        raw = msgspec.json.decode(data, type=list[msgspec.Raw]) if many else [msgspec.Raw(data)]
    except msgspec.DecodeError as error:
        return [], [FieldError(0, "", f"not JSON: {error}")]
    prompts: list[tuple[int, InboxPrompt]] = []
    errors: list[FieldError] = []
    for index, item in enumerate(raw):
        try:
            prompts.append((index, msgspec.json.decode(item, type=InboxPrompt)))
        except msgspec.DecodeError as error:
            reason, _, path = str(error).partition(" - at `$")
            errors.append(FieldError(index, path.rstrip("`").lstrip("."), reason))
    return prompts, errors
