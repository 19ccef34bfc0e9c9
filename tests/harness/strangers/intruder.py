"""`Intruder`: somebody with the credentials of a run's roles, who leaves foreign records in its log while it is on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from schemas.batches import BatchSealed
from schemas.envelope import Envelope, derivations
from schemas.event import Event
from schemas.foreign import Reason
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutRequested
from schemas.steps import StepCommitted
from schemas.weights import WeightsPublished
from storage.follow import Follower
from storage.jetstream.address import NatsAddress
from storage.jetstream.log import JetStreamLog
from tests.harness.strangers.kinds import KINDS, Scene, Write, head, make
from tests.harness.strangers.writer import RawWriter

CLAIMED = "the id of an event to come"
"""A kind beside those of the table: what the server would take for known when the run appends the event."""
EVERY = 4
"""Events of the run between two writes."""
KNOWN = 200
LOOK_S = 0.05


@dataclass(frozen=True)
class Left:
    """A record that an intruder wrote, and its position."""

    position: int
    kind: str
    reason: Reason
    write: Write


class Intruder:
    """left: so far. address: where the log answers just now."""

    def __init__(self, run: str, address: Callable[[], NatsAddress | str | None], writes: int, seed: int) -> None:
        self._run, self._address, self._writes = run, address, writes
        self._chance = random.Random(seed)
        self._kinds = deque(self._chance.sample([*KINDS, CLAIMED], len(KINDS) + 1))
        self._seen: deque[Envelope] = deque(maxlen=KNOWN)
        self.left: list[Left] = []

    @property
    def kinds(self) -> Counter[str]:
        """Return the number of written records by kind."""
        return Counter(left.kind for left in self.left)

    async def intrude(self) -> None:
        """Until everything is written."""
        while not isinstance(address := self._address(), NatsAddress):  # noqa: ASYNC110  a server that another starts
            await asyncio.sleep(LOOK_S)
        log = await JetStreamLog.open(address, self._run)
        login = {"user": address.user, "pass": address.password} if address.user else {}
        try:
            async with RawWriter(address.url, **login) as writer, Follower(log) as follower:
                seen = 0
                while len(self.left) < self._writes:
                    for recorded in await follower.next(wait_s=1.0):
                        self._seen.append(recorded.envelope)
                        seen += 1
                        if not seen % EVERY and len(self.left) < self._writes:
                            await self._write(writer)
        finally:
            await log.close()

    async def _write(self, writer: RawWriter) -> None:
        kind = self._kinds[0]
        self._kinds.rotate(-1)
        scene = Scene(self._chance.choice(self._seen), self._chance.choice(self._seen), self._chance)
        write, reason = (
            (self._claim(scene), Reason.NO_EVENT) if kind == CLAIMED else (make(kind, scene), KINDS[kind][0])
        )
        position = await writer.publish(write)
        if position > (self.left[-1].position if self.left else 0):  # else a claim of an id that is in the log by now
            self.left.append(Left(position, kind, reason, write))

    def _claim(self, scene: Scene) -> Write:
        """The id that the next step's events, or the newest request's reward, will have."""
        steps = [seen.event.step for seen in self._seen if isinstance(seen.event, StepCommitted)]
        step = max(steps, default=-1) + 2
        requested = [seen.event.sample for seen in self._seen if isinstance(seen.event, RolloutRequested)]
        to_come: list[tuple[type[Event], str]] = [
            (StepCommitted, str(step)), (WeightsPublished, str(step + 1)), (BatchSealed, str(step)),
        ]  # fmt: skip
        to_come += [(RewardAssigned, requested[-1])] if requested else []
        kind, entity = self._chance.choice(to_come)
        derivation = derivations(self._run)[kind]
        hashed = derivation.hashed()
        hashed.update(entity.encode())
        subject = scene.event.subject if self._chance.random() < 0.5 else derivation.prefix + entity
        return Write(subject.encode(), b"mine", head(Nats_Msg_Id=hashed.hexdigest()))
