"""`Inbox`: takes prompts from outside producers and answers each message.

JSON on `slime.<run>.inbox.prompts`, one prompt or a list of them; the reply names the groups, or every field that is
wrong. A message is taken whole or not at all. The sender's key makes it idempotent: a repeated key is the same group.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec
import nats

from schemas.errors import SlimeEventsError
from schemas.inbox import FieldError, InboxPrompt, InboxReply
from schemas.prompts import PromptSubmitted
from schemas.subjects import inbox
from slime_events.conductor.prompts import PromptFeed
from slime_events.data.row import Problem
from slime_events.worker import Worker
from storage.log import once

log = logging.getLogger(__name__)

_PLACE = re.compile(r"(?P<message>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)


class Inbox:
    """A subscription on the run's inbox, as a context manager."""

    def __init__(self, worker: Worker, feed: PromptFeed, nats_url: str) -> None:
        self._worker, self._feed, self._url = worker, feed, nats_url
        self._client: Any = None

    async def __aenter__(self) -> Inbox:
        self._client = await nats.connect(self._url, max_reconnect_attempts=-1, name="slime-events-inbox")
        await self._client.subscribe(inbox(self._worker.log.run), cb=self._receive)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.drain()

    async def _receive(self, message: Any) -> None:
        try:
            reply = await self.accept(message.data, (message.headers or {}).get("traceparent"))
        except SlimeEventsError as error:
            reply = InboxReply(accepted=False, errors=(FieldError(0, "", f"not accepted now, try again: {error}"),))
            log.warning("a message to the inbox was not accepted: %s", error)
        if message.reply:
            await message.respond(msgspec.json.encode(reply))

    async def accept(self, data: bytes, traceparent: str | None = None) -> InboxReply:
        """Append what a message says, or tell what is wrong with it. traceparent: the sender's span, linked to ours."""
        prompts, errors = read_message(data)
        events: list[PromptSubmitted] = []
        for index, prompt in enumerate(prompts):
            made = self._feed.from_inbox(prompt)
            if isinstance(made, Problem):
                errors.append(FieldError(index, "prompt", f"{made.reason.value}: {made.message}"))
            else:
                events.append(made)
        if errors:
            return InboxReply(accepted=False, errors=tuple(errors))
        appends = [once(self._worker.enclose(event, traceparent=traceparent)) for event in events]
        await self._worker.log.append(appends)
        return InboxReply(accepted=True, groups=tuple(event.group for event in events))


def read_message(data: bytes) -> tuple[list[InboxPrompt], list[FieldError]]:
    """The prompts of a message and everything that is wrong with it, by index and field."""
    try:
        many = data.lstrip()[:1] == b"["
        raw = msgspec.json.decode(data, type=list[msgspec.Raw]) if many else [msgspec.Raw(data)]
    except msgspec.DecodeError as error:
        return [], [FieldError(0, "", f"not JSON: {error}")]
    prompts, errors = [], []
    for index, item in enumerate(raw):
        try:
            prompts.append(msgspec.json.decode(item, type=InboxPrompt))
        except msgspec.DecodeError as error:
            match = _PLACE.match(str(error))
            path = (match["path"] or "").lstrip(".") if match else ""
            errors.append(FieldError(index, path, match["message"] if match else str(error)))
    return prompts, errors
