"""`Watch`: measure CPU seconds and memory of a process and its descendants, by role."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import TracebackType

import psutil

CPU_EVERY_S = 1.0
MEMORY_EVERY_S = 5.0

ROLES = {
    "ray::ConductorActor": "conductor",
    "ray::GraderActor": "grader",
    "ray::ArchivistActor": "archivist",
    "ray::InboxActor": "inbox",
    "ray::GatewayActor": "gateway",
    "ray::TrainerActor": "trainer",
    "ray::RankActor": "trainer",
    "ray::ServeReplica": "engine worker",
    "serve_apps.engines.host": "engine",
    "sglang::": "engine",
    "nats-server": "nats",
    "raylet": "ray",
    "gcs_server": "ray",
    "ray": "ray",
}
"""Roles by a part of the command line. The first match counts; a process without a match has its parent's role."""


class Watch:
    """Measures while inside `with Watch(pid) as watch:`."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._ended: dict[tuple[int, float], tuple[str, float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.cpu: list[tuple[int, dict[str, float]]] = []
        """Samples: UTC nanoseconds, and CPU seconds so far by role."""
        self.memory = 0
        """Peak of the sum of PSS, in bytes."""

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        looked = 0.0
        while not self._stop.wait(CPU_EVERY_S):
            with contextlib.suppress(psutil.NoSuchProcess):  # the root has ended
                family = [self._root, *self._root.children(recursive=True)]
                self._take_cpu(family)
                if time.monotonic() - looked >= MEMORY_EVERY_S:
                    looked = time.monotonic()
                    self.memory = max(self.memory, sum(proportional_bytes(process.pid) for process in family))

    def _take_cpu(self, family: list[psutil.Process]) -> None:
        roles = {self._root.pid: "launcher"}
        for process in family:
            with contextlib.suppress(psutil.Error):
                role = roles.setdefault(process.pid, role_of(process, roles))
                times = process.cpu_times()
                # Keeps the seconds of ended processes, so that sums never fall.
                self._ended[process.pid, process.create_time()] = (role, times.user + times.system)
        totals: dict[str, float] = {}
        for role, seconds in self._ended.values():
            totals[role] = totals.get(role, 0.0) + seconds
        self.cpu.append((time.time_ns(), totals))

    def cpu_between(self, start: int, end: int) -> dict[str, float]:
        """Return CPU seconds by role between two moments (UTC ns), interpolated linearly."""
        first, last = self._at(start), self._at(end)
        return {role: seconds - first.get(role, 0.0) for role, seconds in last.items()}

    def _at(self, moment: int) -> dict[str, float]:
        if not self.cpu:
            return {}
        after = next((i for i, (at, _) in enumerate(self.cpu) if at >= moment), len(self.cpu) - 1)
        if after == 0 or self.cpu[after][0] < moment:
            return self.cpu[after][1]
        (t0, before), (t1, later) = self.cpu[after - 1], self.cpu[after]
        share = (moment - t0) / (t1 - t0)
        return {role: before.get(role, 0.0) * (1 - share) + value * share for role, value in later.items()}


def role_of(process: psutil.Process, roles: dict[int, str]) -> str:
    """Return the role of a process by its command line, else its parent's role. roles: roles by process id."""
    line = " ".join(process.cmdline())
    match = next((role for part, role in ROLES.items() if part in line), None)
    return match or roles.get(process.ppid(), "other")


def proportional_bytes(pid: int) -> int:
    """Return the PSS in bytes: each resident page divided by its number of processes; 0 for an ended process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
