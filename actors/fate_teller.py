"""`FateTeller`: notifies producers over NATS when their prompts are accepted, rejected or trained on.

Each notification is an `InboxFate` on `slime.<run>.fates.<source>`. Notifications are not stored: a producer that was
disconnected asks on `slime.<run>.inbox.groups`, or asks a gateway.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Self

import msgspec
import nats
import nats.errors
from nats.aio.client import Client

from schemas.batches import BatchSealed
from schemas.errors import SlimeEventsError
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected
from schemas.ids import is_inbox_group
from schemas.inbox import Fate, InboxFate
from schemas.prompts import PromptRejected, PromptSubmitted
from schemas.steps import StepCommitted
from schemas.subjects import fates, of_type
from slime_events.core.config.per_source import NATS
from slime_events.core.run.participant import Participant
from storage.cancellation import end_all
from storage.follow import Follower
from storage.jetstream.address import NatsAddress
from storage.jetstream.closing import Closing
from storage.log import Recorded

log = logging.getLogger(__name__)

TYPES = ("prompt.rejected", "group.accepted", "group.rejected", "batch.sealed", "step.committed")
LOOK_S, LAST_S = 0.5, 5.0
"""Seconds between checks for the end, and seconds to send the last notifications after it."""


class FateTeller:
    """A context manager. A notification that fails is logged; the run neither waits for it nor fails."""

    def __init__(self, worker: Participant, server: NatsAddress) -> None:
        self._log, self._server = worker.log, server
        self._batches: dict[int, tuple[str, ...]] = {}
        self._ending = False
        self._client: Client | None = None
        self._closing = Closing()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._client = await nats.connect(
            **self._server.options(),
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            error_cb=self._closing.on_error,
            name="slime-events-fates",
        )
        self._task = asyncio.create_task(self._tell_all(), name="fates")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        assert self._client is not None
        self._ending = True
        try:
            await asyncio.wait([self._task], timeout=LAST_S)
        finally:
            await end_all(self._task)
            self._closing.closed = True
            with contextlib.suppress(nats.errors.Error):
                await self._client.close()

    async def _tell_all(self) -> None:
        subjects = tuple(of_type(self._log.run, tag) for tag in TYPES)
        try:
            async with Follower(self._log, await self._log.position() + 1, subjects) as follower:
                while (events := await follower.next(LOOK_S)) or not self._ending:
                    await self._tell_of(events)
        except SlimeEventsError as error:
            log.warning("producers get no more notifications: %s", error)

    async def _tell_of(self, events: Sequence[Recorded]) -> None:
        try:
            decided = [fate for recorded in events for fate in await self._fates(recorded.envelope.event)]
            await self._tell([fate for fate in decided if is_inbox_group(fate.group)])
        except (SlimeEventsError, nats.errors.Error) as error:
            log.warning("producers get no notifications of %d events: %s", len(events), error)

    async def _fates(self, event: Event) -> list[InboxFate]:
        """Return the fates of groups that an event decides, with empty keys."""
        match event:
            case GroupAccepted():
                return [InboxFate("", event.group, Fate.ACCEPTED, event.rewards)]
            case GroupRejected():
                return [InboxFate("", event.group, Fate.REJECTED, event.rewards, event.reason)]
            case PromptRejected():
                return [InboxFate("", event.group, Fate.REJECTED, reason=event.reason)]
            case BatchSealed():
                self._batches[event.step] = event.groups
            case StepCommitted():
                groups = self._batches.pop(event.step, None) or await self._groups_of(event.step)
                return [InboxFate("", group, Fate.TRAINED, step=event.step, version=event.version) for group in groups]
        return []

    async def _groups_of(self, step: int) -> tuple[str, ...]:
        sealed = await self._log.last(of_type(self._log.run, "batch.sealed", str(step)))
        event = sealed.envelope.event if sealed else None
        return event.groups if isinstance(event, BatchSealed) else ()

    async def _tell(self, decided: Sequence[InboxFate]) -> None:
        assert self._client is not None
        run = self._log.run
        subjects = [
            of_type(run, f"prompt.{verb}", fate.group) for fate in decided for verb in ("submitted", "rejected")
        ]
        newest = (await self._log.last_of_each(subjects)).values()
        prompts = {recorded.subject.rpartition(".")[2]: recorded for recorded in newest}
        for fate in decided:
            prompt = prompts[fate.group].envelope.event if fate.group in prompts else None
            if isinstance(prompt, PromptSubmitted | PromptRejected):
                keyed = msgspec.structs.replace(fate, key=prompt.source.key)
                await self._client.publish(fates(run, prompt.source.sender or NATS), msgspec.json.encode(keyed))
