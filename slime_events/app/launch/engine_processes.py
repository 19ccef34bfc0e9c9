"""`EngineProcesses`: find engines that were killed, by SIGKILL, because memory ran out, or with their machine.

An engine that ends by itself appends its worker.lost. A killed engine cannot, and Ray Serve replaces it without a
message. Other engines get its requests in both cases (decision 0055), and the log should show why. If engines and
trainer use GPUs in turns, the trainer waits for this event: it says that a killed engine holds no memory any more.
"""

import socket
import time
from collections.abc import Mapping

from schemas.devices import DeviceTaken, Side
from schemas.event import Event
from schemas.workers import WorkerJoined, WorkerLost
from slime_events.core.child.process_table import runs
from slime_events.core.planning.homes import RAY_NODE
from slime_events.core.run.served_models import ROLE as MODEL_ROLE

ROLE = "engine"
END_S = 3.0
"""Seconds in which SGLang's processes end after the engine's own: they look twice a second whether it is there."""


class EngineProcesses:
    """A fold of workers. It sees processes on this machine only; of other machines it learns from Ray."""

    def __init__(self) -> None:
        self._node = socket.gethostname()
        self._pids: dict[str, int] = {}
        self._models: set[str] = set()
        self._machines: dict[str, str] = {}
        self._holders: set[str] = set()
        self._ended: dict[str, float] = {}
        self._sees = False

    def apply(self, event: Event) -> None:
        """Fold one event in when it arrives."""
        if isinstance(event, WorkerJoined):
            self._sees = self._sees or (event.node == self._node and runs(event.pid))
        if isinstance(event, DeviceTaken) and event.side is Side.ENGINES and event.node == self._node:
            self._holders.add(event.worker)
            if self._sees or runs(event.pid):  # it may have been killed before it joined
                self._pids[event.worker] = event.pid
        elif isinstance(event, WorkerJoined) and event.role in (ROLE, MODEL_ROLE):
            if event.role == MODEL_ROLE:
                self._models.add(event.worker)
            if event.node == self._node and runs(event.pid):
                self._pids[event.worker] = event.pid
            if machine := event.facts.get(RAY_NODE):
                self._machines[event.worker] = machine
        elif isinstance(event, WorkerLost):
            self._forget(event.worker)

    def gone(self, lost: Mapping[str, str]) -> list[WorkerLost]:
        """Return events for the engines killed since the last call. They name no requests, as the cause is unknown.

        lost: addresses of lost machines by Ray's node id. An engine that takes turns is returned `END_S` seconds later.
        """
        reasons = {
            worker: f"its process {pid} has disappeared: it was killed from outside, or the machine ran out of memory"
            for worker, pid in self._pids.items()
            if self._has_ended(worker, pid)
        }
        for worker, machine in self._machines.items():
            if machine in lost:
                reasons[worker] = f"its machine {lost[machine]} is lost"
        lost_workers = [
            WorkerLost(worker=worker, role=MODEL_ROLE if worker in self._models else ROLE, reason=reason)
            for worker, reason in reasons.items()
        ]
        for worker in reasons:
            self._forget(worker)
        return lost_workers

    def _has_ended(self, worker: str, pid: int) -> bool:
        """Return whether the engine's process is gone, and so are those that it has started."""
        if runs(pid):
            return False
        since = self._ended.setdefault(worker, time.monotonic())
        return worker not in self._holders or time.monotonic() - since >= END_S

    def _forget(self, worker: str) -> None:
        self._pids.pop(worker, None)
        self._machines.pop(worker, None)
        self._ended.pop(worker, None)
        self._holders.discard(worker)
        self._models.discard(worker)
