"""`EngineWatch`: report engines that are lost or replaced, and a run of which no engine can start."""

from collections import defaultdict

from schemas.event import Event
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.app.launch.engine_processes import ROLE
from slime_events.core.config.engine import EngineSettings
from slime_events.core.run.served_models import ROLE as MODEL_ROLE

START_TRIES = 2


class EngineWatch:
    """A fold that reports lost and replaced engines. replicas: engines of the run; others replace a lost one. models:
    servers of other models, for which the same holds.
    """

    def __init__(self, replicas: int, models: int = 0) -> None:
        self._replicas = {ROLE: replicas, MODEL_ROLE: models}
        self._joined: dict[str, int] = defaultdict(int)
        self._lost: dict[str, list[str]] = defaultdict(list)

    @classmethod
    def of(cls, engine: EngineSettings) -> "EngineWatch":
        """Return the watch of a run."""
        return cls(engine.replicas, sum(group.engines for group in engine.groups if not group.trained))

    def apply(self, event: Event) -> str | None:
        """Fold one event in, and return a sentence if it is news."""
        if not isinstance(event, WorkerLost | WorkerJoined) or event.role not in self._replicas:
            return None
        if isinstance(event, WorkerLost):
            self._lost[event.role].append(event.reason)
            return f"{event.worker} is lost: {event.reason}"
        self._joined[event.role] += 1
        kind = "engine" if event.role == ROLE else "server of a model"
        news = f"{event.worker} replaces a lost {kind} (started in {sum(event.seconds.values()):.0f} s)"
        return news if self._joined[event.role] > self._replicas[event.role] else None

    @property
    def hopeless(self) -> str | None:
        """Why no engine can join: `START_TRIES` starts per replica have failed, and none has succeeded."""
        for role, replicas in self._replicas.items():
            lost = self._lost[role]
            if replicas and not self._joined[role] and len(lost) >= START_TRIES * replicas:
                kind = "an engine" if role == ROLE else "a server of another model"
                return f"{len(lost)} starts of {kind} failed, the last of them with: {lost[-1]}"
        return None
