"""`EngineWatch`: what the launcher says of engines that come and go. A fold of worker.joined and worker.lost."""

from __future__ import annotations

from schemas.event import Event
from schemas.workers import WorkerJoined, WorkerLost

START_TRIES = 2
ROLE = "engine"


class EngineWatch:
    """replicas: engines that the run asked for; each one that joins beyond them replaces one that is gone."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._joined = 0
        self._lost: list[str] = []

    def apply(self, event: Event) -> str | None:
        """Fold one event in; a sentence where it is news."""
        if isinstance(event, WorkerLost) and event.role == ROLE:
            self._lost.append(event.reason)
            return f"{event.worker} is lost: {event.reason}"
        if isinstance(event, WorkerJoined) and event.role == ROLE:
            self._joined += 1
            if self._joined > self._replicas:
                seconds = sum(event.seconds.values())
                return (
                    f"an engine was lost, and {event.worker} has joined in its place (it took {seconds:.0f} s to start)"
                )
        return None

    @property
    def hopeless(self) -> str | None:
        """Why no engine will ever join: before one did, `START_TRIES` for each that was asked for have ended."""
        if self._joined or len(self._lost) < START_TRIES * self._replicas:
            return None
        return f"{len(self._lost)} starts of an engine failed, the last one so: {self._lost[-1]}"
