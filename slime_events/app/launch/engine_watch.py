"""`EngineWatch`: report engines that are lost or replaced, and a run of which no engine can start."""

from schemas.event import Event
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.launch.engine_processes import ROLE

START_TRIES = 2


class EngineWatch:
    """A fold that reports lost and replaced engines. replicas: engines of the run; others replace a lost one."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._joined = 0
        self._lost: list[str] = []

    def apply(self, event: Event) -> str | None:
        """Fold one event in, and return a sentence if it is news."""
        if not isinstance(event, WorkerLost | WorkerJoined) or event.role != ROLE:
            return None
        if isinstance(event, WorkerLost):
            self._lost.append(event.reason)
            return f"{event.worker} is lost: {event.reason}"
        self._joined += 1
        news = f"{event.worker} replaces a lost engine (started in {sum(event.seconds.values()):.0f} s)"
        return news if self._joined > self._replicas else None

    @property
    def hopeless(self) -> str | None:
        """Why no engine can join: `START_TRIES` starts per replica have failed, and none has succeeded."""
        if self._joined or len(self._lost) < START_TRIES * self._replicas:
            return None
        return f"{len(self._lost)} starts of an engine failed, the last of them with: {self._lost[-1]}"
