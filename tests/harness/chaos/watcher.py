"""`Watcher`: the log of a living run as a reader outside sees it, through every death of its server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from schemas.errors import LogDamaged, SlimeEventsError
from schemas.event import Event
from schemas.rollouts import RolloutCompleted, RolloutProgressed
from schemas.runs import RunFailed, RunFinished, RunResumed
from schemas.sessions import SessionSealed
from schemas.steps import StepCommitted
from schemas.turns import TurnBegun, TurnRecorded
from schemas.weights import WeightsPublished
from schemas.workers import WorkerJoined
from storage.follow import Follower
from storage.jetstream.address import NatsAddress
from storage.jetstream.log import JetStreamLog
from storage.log import Recorded

AGAIN_S = 0.1
ANSWER_S = 5.0
"""For one call while the server is away; then it is looked for anew, since it may have another port."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """An event as it was seen. at: its own stamp; seen_at: when it came here; both UTC ns. tokens: that it brought.

    joined: the role of the worker whose `worker.joined` it is; start_s: of its start. resumed: it is `run.resumed`.
    """

    position: int
    id: str
    at: int
    seen_at: int
    tokens: int
    joined: str = ""
    resumed: bool = False
    start_s: float = 0.0


def tokens_in(event: Event) -> int:
    """Return the response tokens that an event brings into the log."""
    return event.tokens.n if isinstance(event, RolloutProgressed | RolloutCompleted) else 0


class Watcher:
    """`follow` runs beside the kills; the rest is read from the events so far. url: where the log answers just now.
    open_turns: of agents, (sample, index).
    """

    def __init__(self, run: str, url: Callable[[], NatsAddress | str | None]) -> None:
        self._run, self._url = run, url
        self.sightings: list[Sighting] = []
        self.version = -1
        self.over = False
        self.failure: str | None = None
        self.open_turns: set[tuple[str, int]] = set()
        self._joined: dict[str, list[int]] = {}

    @property
    def position(self) -> int:
        """The position of the newest event."""
        return self.sightings[-1].position if self.sightings else 0

    def pids(self, role: str) -> list[int]:
        """Return the pids of the workers that joined in a role, the newest first."""
        return self._joined.get(role, [])[::-1]

    def moved_since(self, at: int) -> bool:
        """Return whether tokens were made after a moment (UTC ns)."""
        for sighting in reversed(self.sightings):
            if sighting.seen_at <= at:
                return False
            if sighting.tokens and sighting.at > at:
                return True
        return False

    async def follow(self) -> None:
        """Follow the log until cancelled. A hole in the log raises; an absent server does not."""
        while True:
            try:
                await self._follow_one_server()
            except LogDamaged:
                raise
            except SlimeEventsError:
                await asyncio.sleep(AGAIN_S)

    async def _follow_one_server(self) -> None:
        if (url := self._url()) is None:
            await asyncio.sleep(AGAIN_S)
            return
        log = await JetStreamLog.open(
            url, self._run, create=False, deadline_s=ANSWER_S, retry_s=ANSWER_S, on_wait=_in_silence
        )
        try:
            async with Follower(log, self.position + 1) as follower:
                while True:
                    for recorded in await follower.next(wait_s=1.0):
                        self.see(recorded, time.time_ns())
        finally:
            await log.close()

    def see(self, recorded: Recorded, now: int) -> None:
        """Fold one event in."""
        envelope, event = recorded.envelope, recorded.envelope.event
        joined = event.role if isinstance(event, WorkerJoined) else ""
        start_s = sum(event.seconds.values()) if isinstance(event, WorkerJoined) else 0.0
        resumed = isinstance(event, RunResumed)
        self.sightings.append(
            Sighting(recorded.position, envelope.id, envelope.at, now, tokens_in(event), joined, resumed, start_s)
        )
        if isinstance(event, WorkerJoined):
            self._joined.setdefault(event.role, []).append(event.pid)
        elif isinstance(event, TurnBegun) and event.nonce:
            self.open_turns.add((event.sample, event.index))
        elif isinstance(event, TurnRecorded):
            self.open_turns.discard((event.sample, event.index))
        elif isinstance(event, SessionSealed):
            self.open_turns = {turn for turn in self.open_turns if turn[0] != event.sample}
        elif isinstance(event, StepCommitted | WeightsPublished):
            self.version = max(self.version, event.version)
        elif isinstance(event, RunFinished | RunFailed):
            self.over = True
            self.failure = event.reason if isinstance(event, RunFailed) else None
        elif isinstance(event, RunResumed):
            self.over, self.failure = False, None


def _in_silence(_: str) -> None:
    """Ignore errors of the connection: servers are expected to be away."""
