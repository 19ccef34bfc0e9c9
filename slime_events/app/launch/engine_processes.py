"""`EngineProcesses`: which engines of this machine are gone without a word: SIGKILL, or a machine out of memory.

An engine that ends by itself appends its worker.lost. One that is killed cannot, and Ray Serve starts another in its
place without telling anybody. Its requests come to others either way (decision 0055); the log should say why.
"""

import socket

from schemas.event import Event
from schemas.workers import WorkerJoined, WorkerLost
from serve_apps.engine.template import runs

ROLE = "engine"


class EngineProcesses:
    """A fold of workers. Engines of other machines, and those whose process cannot be seen from here, are left out."""

    def __init__(self) -> None:
        self._node = socket.gethostname()
        self._pids: dict[str, int] = {}

    def apply(self, event: Event) -> None:
        """Fold one event in, as it comes."""
        if isinstance(event, WorkerJoined) and event.role == ROLE and event.node == self._node and runs(event.pid):
            self._pids[event.worker] = event.pid
        elif isinstance(event, WorkerLost):
            self._pids.pop(event.worker, None)

    def gone(self) -> list[WorkerLost]:
        """Those that are gone since the last call. They name no requests: nobody knows that these were why."""
        gone = [(worker, pid) for worker, pid in self._pids.items() if not runs(pid)]
        for worker, _ in gone:
            del self._pids[worker]
        reason = "its process {} is gone without a word: killed from outside, or by a machine out of memory"
        return [WorkerLost(worker=worker, role=ROLE, reason=reason.format(pid)) for worker, pid in gone]
