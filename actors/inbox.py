"""`Inbox`: takes prompts from outside producers and answers each message; and says what became of them.

JSON on `slime.<run>.inbox.prompts`, one prompt or a list; the reply names the groups, or every invalid field. A
message is accepted whole or not at all. So are finished groups on `.trajectories` and rewards on `.rewards`. The
sender's key makes it idempotent: a repeated key is the same group, and is refused with another content. Keys on
`slime.<run>.inbox.groups` are answered with the fate of their groups. On `slime.<run>.inbox.gateway` only a gateway may
send: headers say in whose name, and what (storage/nats/accounts.py).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self

import msgspec
import nats
import nats.errors

from schemas.errors import EventTooLarge, LogUnavailable, SlimeEventsError, UnwritableEvent
from schemas.event import Event
from schemas.inbox import KIND, KINDS, PROMPTS, SENDER, FieldError, InboxFates, InboxQuestion, InboxReply
from schemas.outside_json import read_json
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.subjects import about, inbox
from slime_events.analysis.model.fates import fates_of
from slime_events.core.run.participant import Participant
from slime_events.core.state.run import RunPhase, RunState
from slime_events.loop.prompts.inbox_message import WHOLE, WrongField, field_error, read_message
from slime_events.loop.prompts.known_keys import KnownKeys
from storage.jetstream.address import NatsAddress
from storage.jetstream.closing import Closing
from storage.log import MAX_BATCH, Append, Fence, check_size, once
from storage.payloads import Offload

log = logging.getLogger(__name__)

Taken = tuple[str, list[Event]]
"""What the reply calls an item, and the events that it comes to, appended all or none."""


class Door(Protocol):
    """What is taken in of one kind. item: as a producer sends it. adds: they wait until it is their turn."""

    @property
    def item(self) -> type[msgspec.Struct]: ...

    @property
    def adds(self) -> bool: ...

    async def events(self, items: Sequence[Any], sender: str, state: RunState) -> Sequence[Taken | WrongField]:
        """Of each item. state: of the run now. Raises LogUnavailable."""


Doors = Mapping[str, Door]
"""By the kind of what they take."""


class Inbox:
    """A subscription on the run's inbox, as a context manager. opens: gives the doors, when the first message comes.
    state: of the run, when it is called. offload: where long arrays go. room: how many more prompts the run takes of a
    sender in such a state; None: any number.
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
        self._client: Any = None
        self._closing = Closing()

    async def __aenter__(self) -> Self:
        self._client = await nats.connect(
            **self._server.options(),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=self._closing.on_error,
            name="slime-events-inbox",
        )
        for kind in KINDS:
            await self._client.subscribe(inbox(self._worker.log.run, kind), cb=partial(self._receive, kind=kind))
        await self._client.subscribe(inbox(self._worker.log.run, "gateway"), cb=self._receive_for)
        await self._client.subscribe(inbox(self._worker.log.run, "groups"), cb=self._tell)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.closed = True
        try:
            await self._client.drain()
        except nats.errors.Error:  # not connected now, so nobody waits for a reply
            await self._client.close()

    async def _receive_for(self, message: Any) -> None:
        """For whom a gateway names. Only these come from a gateway: another sender's header is no proof."""
        headers = message.headers or {}
        await self._receive(message, headers.get(SENDER, ""), headers.get(KIND, PROMPTS))

    async def _receive(self, message: Any, sender: str = "", kind: str = PROMPTS) -> None:
        try:
            reply = await self.accept(message.data, (message.headers or {}).get("traceparent"), sender, kind)
        except SlimeEventsError as error:
            reply = InboxReply(accepted=False, errors=(FieldError(0, "", f"not accepted now, try again: {error}"),))
            log.warning("a message to the inbox was not accepted: %s", error)
        if message.reply:
            await message.respond(msgspec.json.encode(reply))

    async def _tell(self, message: Any) -> None:
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
        """Append what a message has, or reply with its errors. traceparent: the sender's span, linked to ours. kind: of
        the items in it. Raises LogUnavailable, where the run is over too.
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
        made = await door.events([item for _, item in items], sender, state)
        given: list[tuple[int, Taken]] = []
        for (index, _), one in zip(items, made, strict=True):
            if isinstance(one, WrongField):
                errors.append(FieldError(index, one.field, one.message))
            else:
                given.append((index, one))
        async with self._taking:  # of two messages with the same key the second finds the first
            return await self._take(given, errors, traceparent)

    async def _take(
        self, given: Sequence[tuple[int, Taken]], errors: list[FieldError], traceparent: str | None
    ) -> InboxReply:
        """Append what is given, by index, unless something is wrong. Raises LogUnavailable."""
        keys = await KnownKeys.of(self._worker.log, [name for _, (name, events) in given if _content(events)])
        appends: dict[str, list[Append]] = {}  # by name: a key twice in one message is one prompt
        for index, (name, events) in given:
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
        except EventTooLarge as error:  # all together
            return InboxReply(accepted=False, errors=(FieldError(0, WHOLE, str(error)),))
        return InboxReply(accepted=True, groups=tuple(name for _, (name, _) in given))

    async def _opened(self) -> Doors:
        async with self._opening:
            if self._doors is None:
                self._doors = await self._opens()
            return self._doors

    async def _checked(self, event: Event, traceparent: str | None) -> Append:
        """Raises EventTooLarge, UnwritableEvent."""
        envelope = self._worker.enclose(await self._offload(event) if self._offload else event, traceparent=traceparent)
        append = once(envelope)
        if isinstance(event, RewardAssigned):  # a sample has a reward, or none for good
            append = Append(envelope, Fence(about(envelope.run, "reward", event.sample), 0))
        check_size(append, len(append.encoded()))
        return append


def _content(events: Iterable[Event]) -> str:
    """What a key stands for; empty for what has none, such as a reward."""
    return next((one.source.content for one in events if isinstance(one, PromptSubmitted)), "")


def _whole(items: Iterable[list[Append]]) -> Iterator[list[Append]]:
    """In as few appends as there can be, each item in one."""
    part: list[Append] = []
    for item in items:
        if part and len(part) + len(item) > MAX_BATCH:
            yield part
            part = []
        part = [*part, *item] if item else part
    if part:
        yield part
