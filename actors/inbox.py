"""`Inbox`: accepts prompts from outside producers over NATS, replies to each message, and reports groups' fates.

| subject | message | reply |
|---|---|---|
| `slime.<run>.inbox.prompts` | JSON: a prompt or a list | the groups, or every invalid field |
| `slime.<run>.inbox.trajectories` | the same for finished groups | the same |
| `slime.<run>.inbox.rewards` | the same for rewards | the same |
| `slime.<run>.inbox.groups` | keys | the fates of their groups |
| `slime.<run>.inbox.gateway` | items of any kind; a header names the kind and the sender | as for the kind |

A message is accepted as a whole or not at all. The sender's key makes prompts idempotent: a repeated key is the same
group, and is refused if the content differs. Only a gateway may send on `.gateway` (storage/nats/accounts.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas.errors import EventTooLarge, LogUnavailable, SlimeEventsError, UnwritableEvent
from schemas.event import Event
from schemas.inbox import KIND, KINDS, PROMPTS, SENDER, FieldError, InboxFates, InboxQuestion, InboxReply
from schemas.outside_json import read_json
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.subjects import about, inbox
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.prompts.inbox_message import WHOLE, WrongField, field_error, read_message
from slime_events.loop.prompts.producer_keys import KnownKeys
from slime_events.model.fates import fates_of
from storage.jetstream.address import NatsAddress
from storage.jetstream.closing import Closing
from storage.log import MAX_BATCH, Append, Fence, check_size, once
from storage.payloads import Offload

log = logging.getLogger(__name__)

Taken = tuple[str, list[Event]]
"""An accepted item: its name in the reply, and its events, which are appended all or none."""


class Door(Protocol):
    """Handles items of one kind."""

    @property
    def item(self) -> type[msgspec.Struct]:
        """The type of an item as a producer sends it."""

    @property
    def adds(self) -> bool:
        """Whether items wait in the run and count against its limit."""

    async def events(self, items: Sequence[Any], sender: str, state: RunState) -> Sequence[Taken | WrongField]:
        """Return an acceptance or an error per item. state: the run's current state. Raises LogUnavailable."""


Doors = Mapping[str, Door]
"""Doors by the kind of their items."""


class Inbox:
    """A subscription to the run's inbox, as a context manager.

    opens: creates the doors on the first message. state: returns the run's current state. offload: stores long arrays.
    room: returns how many more prompts the run accepts from a sender; None is no limit.
    """

    def __init__(
        self,
        worker: Participant,
        opens: Callable[[], Awaitable[Doors]],
        state: Callable[[], Awaitable[RunState]],
        server: NatsAddress,
        offload: Offload | None = None,
        room: Callable[[RunState, str], int] | None = None,
    ) -> None:
        self._worker, self._state, self._server, self._offload = worker, state, server, offload
        self._room = room
        self._opens, self._opening = opens, asyncio.Lock()
        self._doors: Doors | None = None
        self._taking = asyncio.Lock()
        self._client: Client | None = None
        self._closing = Closing()

    async def __aenter__(self) -> Self:
        client = self._client = await nats.connect(
            **self._server.options(),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=self._closing.on_error,
            name="slime-events-inbox",
        )
        for kind in KINDS:
            await client.subscribe(inbox(self._worker.log.run, kind), cb=partial(self._receive, kind=kind))
        await client.subscribe(inbox(self._worker.log.run, "gateway"), cb=self._receive_for)
        await client.subscribe(inbox(self._worker.log.run, "groups"), cb=self._tell)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        self._closing.closed = True
        try:
            await self._client.drain()
        except nats.errors.Error:  # disconnected, so that no sender waits for a reply
            await self._client.close()

    async def _receive_for(self, message: Msg) -> None:
        """Accept a gateway's message for the sender in its header. Only a gateway's header is trusted."""
        headers = message.headers or {}
        await self._receive(message, headers.get(SENDER, ""), headers.get(KIND, PROMPTS))

    async def _receive(self, message: Msg, sender: str = "", kind: str = PROMPTS) -> None:
        try:
            reply = await self.accept(message.data, (message.headers or {}).get("traceparent"), sender, kind)
        except SlimeEventsError as error:
            reply = InboxReply(accepted=False, errors=(FieldError(0, "", f"not accepted now, try again: {error}"),))
            log.warning("a message to the inbox was not accepted: %s", error)
        if message.reply:
            await message.respond(msgspec.json.encode(reply))

    async def _tell(self, message: Msg) -> None:
        try:
            reply = await fates_of(self._worker.log, read_json(message.data, InboxQuestion))
        except msgspec.DecodeError as error:
            reply = InboxFates(errors=(field_error(0, error, WHOLE),))
        except SlimeEventsError as error:
            reply = InboxFates(errors=(FieldError(0, "", f"not known now, try again: {error}"),))
        if message.reply:
            await message.respond(msgspec.json.encode(reply))

    async def accept(
        self, data: bytes, traceparent: str | None = None, sender: str = "", kind: str = PROMPTS
    ) -> InboxReply:
        """Append the items of a message, or reply with its errors.

        traceparent: the sender's span, to which the run's spans link. kind: the kind of the items. Raises
        LogUnavailable, also if the run is over.
        """
        if (door := (await self._opened()).get(kind)) is None:
            return InboxReply(accepted=False, errors=(FieldError(0, WHOLE, f"this run takes no {kind}"),))
        state = await self._state()
        if state.phase in (RunPhase.FINISHED, RunPhase.FAILED):
            raise LogUnavailable("the run is over")
        if door.adds and self._room is not None and self._room(state, sender) <= 0:
            why = "as many prompts wait as the run takes (--max-waiting-prompts, --source-quota); try again"
            full = FieldError(0, "", why)
            return InboxReply(accepted=False, errors=(full,), full=True)
        items, errors = read_message(data, door.item)
        results = await door.events([item for _, item in items], sender, state)
        accepted: list[tuple[int, Taken]] = []
        for (index, _), result in zip(items, results, strict=True):
            if isinstance(result, WrongField):
                errors.append(FieldError(index, result.field, result.message))
            else:
                accepted.append((index, result))
        async with self._taking:  # the second of two messages with the same key must find the first
            return await self._take(accepted, errors, traceparent)

    async def _take(
        self, accepted: Sequence[tuple[int, Taken]], errors: list[FieldError], traceparent: str | None
    ) -> InboxReply:
        """Append the accepted items, by index, unless there are errors. Raises LogUnavailable."""
        keys = await KnownKeys.of(self._worker.log, [name for _, (name, events) in accepted if _content(events)])
        appends: dict[str, list[Append]] = {}  # by name: a repeated key in one message is one prompt
        for index, (name, events) in accepted:
            if (conflict := keys.conflict(index, name, _content(events))) is not None:
                errors.append(conflict)
            try:
                if name not in appends:
                    appends[name] = [await self._checked(event, traceparent) for event in events]
            except (EventTooLarge, UnwritableEvent) as error:
                errors.append(FieldError(index, "prompt", str(error)))
        if errors:
            return InboxReply(accepted=False, errors=tuple(errors))
        try:
            for part in _whole(appends.values()):
                await self._worker.log.append(part)
        except EventTooLarge as error:  # the whole message is too large
            return InboxReply(accepted=False, errors=(FieldError(0, WHOLE, str(error)),))
        return InboxReply(accepted=True, groups=tuple(name for _, (name, _) in accepted))

    async def _opened(self) -> Doors:
        async with self._opening:
            if self._doors is None:
                self._doors = await self._opens()
            return self._doors

    async def _checked(self, event: Event, traceparent: str | None) -> Append:
        """Return the append of an event. Raises EventTooLarge, UnwritableEvent."""
        envelope = self._worker.enclose(await self._offload(event) if self._offload else event, traceparent=traceparent)
        append = once(envelope)
        if isinstance(event, RewardAssigned):  # the fence refuses a second reward, or one after a failure
            append = Append(envelope, Fence(about(envelope.run, "reward", event.sample), 0))
        check_size(append, len(append.encoded()))
        return append


def _content(events: Iterable[Event]) -> str:
    """Return the content that a key identifies; empty for an item without a key, such as a reward."""
    return next((event.source.content for event in events if isinstance(event, PromptSubmitted)), "")


def _whole(items: Iterable[list[Append]]) -> Iterator[list[Append]]:
    """Yield as few parts as possible, without dividing an item."""
    part: list[Append] = []
    for item in items:
        if part and len(part) + len(item) > MAX_BATCH:
            yield part
            part = []
        part = [*part, *item] if item else part
    if part:
        yield part
