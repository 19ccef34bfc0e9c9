"""`Family`: the processes of the run, found by descent. Nothing outside of it is ever touched.

This process adopts orphans (PR_SET_CHILD_SUBREAPER), so that whatever the run has started stays among its descendants
when the process in between is killed. A kind of process is recognized by the pid that it records (in `worker.joined` or
server.json) or, if it records none, by its command line within the family.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Sequence

import psutil

from tests.harness.chaos.schedule import Kind

_PR_SET_CHILD_SUBREAPER = 36
_END_S = 15.0

TITLES = {
    Kind.ENGINE: "ray::ServeReplica",
    Kind.CONDUCTOR: "ray::ConductorActor",
    Kind.INBOX: "ray::InboxActor",
    Kind.GRADER: "ray::GraderActor",
    Kind.TRAINER: "ray::TrainerActor",
    Kind.RANK: "ray::RankActor",
    Kind.ARCHIVIST: "ray::ArchivistActor",
    Kind.RAYLET: "raylet/raylet",
    Kind.SERVE_CONTROLLER: "ray::ServeController",
    Kind.GATEWAY: "ray::GatewayActor",
}
_HOST = "serve_apps.engines.host"
_GRADER = "slime_events.plugins.rewards.worker"


class Family:
    """The descendants of this process."""

    def __init__(self) -> None:
        self._me = psutil.Process()

    def adopt_orphans(self) -> None:
        """Let a descendant whose parent dies become a child of this process, not of init."""
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "this process cannot adopt orphans")

    def members(self) -> list[psutil.Process]:
        """Return all that live now."""
        alive = []
        for process in self._me.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive

    def find(self, kind: Kind, joined: Sequence[int] = ()) -> psutil.Process | None:
        """Return a living process of a kind. joined: pids that recorded that kind, which are tried first."""
        members = self.members()
        alive = {process.pid: process for process in members}
        if process := next((alive[pid] for pid in joined if pid in alive), None):
            return process
        match kind:
            case Kind.SCHEDULER:
                # Hosts' template is a child of the first one, and has its command line.
                hosts = {process.pid for process in members if _HOST in _line(process)}
                return next((p for p in members if _parent(p) in hosts and p.pid not in hosts), None)
            case Kind.GRADER_CHILD:
                return next((process for process in members if _GRADER in _line(process)), None)
            case _:
                return next((p for p in members if kind in TITLES and TITLES[kind] in _line(p)), None)

    def kill(self, process: psutil.Process) -> bool:
        """Send SIGKILL to a member that still lives; False if it has just ended."""
        if process not in self.members():
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(process.pid, signal.SIGKILL)
            return True
        return False

    def kill_all(self, but: Sequence[int] = ()) -> None:
        """Send SIGKILL to every member at once. but: pids that are to stay."""
        for process in self.members():
            if process.pid not in but:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def reap(self, leave: int = 0) -> None:
        """Take adopted zombies off the process table. leave: pid of a child that somebody else waits for."""
        for process in self._me.children():
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.pid != leave and process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)

    def left(self, wait_s: float, but: Sequence[int] = ()) -> list[str]:
        """Return the command lines of members that are left after `wait_s`. but: pids that are to stay."""
        until = time.monotonic() + wait_s
        while (staying := [p for p in self.members() if p.pid not in but]) and time.monotonic() < until:
            self.reap()
            time.sleep(0.05)
        return [_line(process)[:160] for process in staying]

    def end(self, but: Sequence[int] = ()) -> None:
        """Kill every member that is left."""
        until = time.monotonic() + _END_S
        while left := [process.pid for process in self.members() if process.pid not in but]:
            if time.monotonic() > until:
                raise TimeoutError(f"not ended by SIGKILL within {_END_S:.0f} s: {left}")
            self.kill_all(but)
            self.reap()
            time.sleep(0.05)
        self.reap()


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.Error:
        return 0
