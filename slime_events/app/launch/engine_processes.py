"""`EngineProcesses`: find engines on this machine whose process was killed, by SIGKILL or because memory ran out.

An engine that ends by itself appends its worker.lost. A killed engine cannot, and Ray Serve replaces it without a
message. Other engines get its requests in both cases (decision 0055), and the log should show why.
"""

import socket

from schemas.event import Event
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.child.process_table import runs

ROLE = "engine"


class EngineProcesses:
    """A fold of workers. Ignores engines on other machines and engines whose process is not visible here."""

    def __init__(self) -> None:
        self._node = socket.gethostname()
        self._pids: dict[str, int] = {}

    def apply(self, event: Event) -> None:
        """Fold one event in when it arrives."""
        if isinstance(event, WorkerJoined) and event.role == ROLE and event.node == self._node and runs(event.pid):
            self._pids[event.worker] = event.pid
        elif isinstance(event, WorkerLost):
            self._pids.pop(event.worker, None)

    def gone(self) -> list[WorkerLost]:
        """Return events for the engines killed since the last call. They name no requests, as the cause is unknown."""
        gone = [(worker, pid) for worker, pid in self._pids.items() if not runs(pid)]
        for worker, _ in gone:
            del self._pids[worker]
        reason = "its process {} has disappeared: it was killed from outside, or the machine ran out of memory"
        return [WorkerLost(worker=worker, role=ROLE, reason=reason.format(pid)) for worker, pid in gone]
