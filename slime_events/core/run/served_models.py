"""`ServedModels`: the servers of models that are served beside the trained one, by what the log says of workers."""

import asyncio
from collections.abc import Iterable

from schemas.event import Event
from schemas.subjects import of_type
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.run.participant import Participant
from storage.follow import Follower

ROLE = "model"
"""Role of a server of a model that is not trained, in its `worker.joined`."""
MODEL, ADDRESS = "model", "address"
"""Facts of its `worker.joined`: name of the model, and host:port of the server."""
GROUP = "group"
"""Fact of an engine's `worker.joined`: its group in `--sglang-config`."""


class ServedModels:
    """A fold of workers: the servers that are there."""

    def __init__(self) -> None:
        self._servers: dict[str, dict[str, str]] = {}
        self._changed = asyncio.Event()

    def apply(self, event: Event) -> None:
        """Fold one event in."""
        if isinstance(event, WorkerJoined) and event.role == ROLE:
            self._servers.setdefault(event.facts[MODEL], {})[event.worker] = event.facts[ADDRESS]
            self._changed.set()
        elif isinstance(event, WorkerLost):
            for servers in self._servers.values():
                servers.pop(event.worker, None)

    def addresses(self, model: str) -> list[str]:
        """Return host:port of each server of a model."""
        return list(self._servers.get(model, {}).values())

    async def all_there(self, models: Iterable[str]) -> None:
        """Wait until each of the models has a server."""
        while not all(map(self.addresses, models)):
            self._changed.clear()
            await self._changed.wait()

    async def follow(self, worker: Participant) -> None:
        """Fold the workers of the participant's incarnation until cancelled. Those of earlier ones have ended."""
        since = max(1, worker.incarnation.since) if worker.incarnation else 1
        subjects = of_type(worker.log.run, "worker.joined"), of_type(worker.log.run, "worker.lost")
        async with Follower(worker.log, since, subjects) as follower:
            while True:
                for recorded in await follower.next(wait_s=60.0):
                    self.apply(recorded.envelope.event)
