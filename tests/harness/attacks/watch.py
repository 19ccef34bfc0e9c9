"""`Watch`: a process beside the run that asks its gateway for /healthz again and again, and sums up memory by role.

`python -m tests.harness.attacks.watch PORT PID FILE` writes a line of JSON per request until it is ended. It is a
separate process, so that an attacker's own computation does not look like a slow gateway.
"""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, TextIO

import psutil

EVERY_S, MEMORY_S, ANSWER_S = 0.1, 1.0, 60.0
ROLES = {
    "ray::GatewayActor": "gateway",
    "app.cli.main gateway": "gateway",
    "ray::TinkerActor": "tinker",
    "ray::ConductorActor": "conductor",
    "ray::InboxActor": "inbox",
    "ray::GraderActor": "grader",
    "ray::AgentsActor": "agents",
    "ray::ArchivistActor": "archivist",
    "ray::TrainerActor": "trainer",
    "ray::ServeReplica": "replica",
    "slime_events.plugins.rewards.worker": "grading",
    "serve_apps.engines.host": "engine",
    "sglang": "engine",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """Between two moments. worst_ms: of /healthz, an answer that is still waited for included. late_ms: the same of a
    server that has nothing to do. peaks: MB of each role at most.
    """

    worst_ms: float
    late_ms: float
    peaks: dict[str, int]


class Watch:
    """The process, and its output."""

    def __init__(self, port: int, pid: int, file: Path, health: str = "/healthz") -> None:
        words = [sys.executable, "-m", "tests.harness.attacks.watch", str(port), str(pid), str(file), health]
        file.touch()
        self._file = file
        self._process = subprocess.Popen(words)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)

    def seen(self, begin: float, end: float) -> Seen:
        """Between two moments of time.monotonic()."""
        return seen_in(
            (json.loads(line) for line in self._file.read_text().splitlines() if line.endswith("}")), begin, end
        )


def seen_in(lines: Any, begin: float, end: float) -> Seen:
    """Sum up the lines of the watcher that fall into a span."""
    worst, late, peaks = 0.0, 0.0, dict[str, int]()
    for line in lines:
        if line["at"] < begin or line.get("asked", line["at"]) > end:
            continue
        worst, late = max(worst, line.get("ms", 0.0)), max(late, line.get("late", 0.0))
        for role, size in line.get("memory", {}).items():
            peaks[role] = max(peaks.get(role, 0), size)
    return Seen(worst, late, peaks)


def ask(port: int, path: str, file: TextIO, name: str) -> None:
    """Ask again and again, on a new connection each time. An answer that is not 200 counts as one that never came."""
    while True:
        begun = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S)
            connection.request("GET", path)
            answer = connection.getresponse()
            good = answer.status == 200 and answer.read() is not None
            connection.close()
        except (OSError, http.client.HTTPException):
            good = False
        at = time.monotonic()
        ms = (at - begun) * 1000 if good else ANSWER_S * 1000
        _write(file, {"at": at, "asked": begun, name: round(ms, 1)})
        time.sleep(EVERY_S)


class Control(BaseHTTPRequestHandler):
    """A server that has nothing to do: how long its answers take is the machine's doing."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep its answers out of the log."""


def control() -> None:
    """Serve, on a port that is printed."""
    server = HTTPServer(("127.0.0.1", 0), Control)
    print(server.server_port, flush=True)
    server.serve_forever()


def memory_of(pid: int) -> dict[str, int]:
    """Return the MB of each role below a process, the largest of its kind."""
    largest: dict[str, int] = {}
    for process in psutil.Process(pid).children(recursive=True):
        try:
            line, size = " ".join(process.cmdline()), process.memory_info().rss >> 20
        except psutil.Error:
            continue
        role = next((role for title, role in ROLES.items() if title in line), None)
        if role is not None:
            largest[role] = max(largest.get(role, 0), size)
    return largest


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


def main(port: int, pid: int, path: Path, health: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        words = [sys.executable, "-m", "tests.harness.attacks.watch"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            own_port = int(other.stdout.readline())
            for watched, name in ((port, "ms"), (own_port, "late")):
                threading.Thread(target=ask, args=(watched, health, file, name), daemon=True).start()
            try:
                while psutil.pid_exists(pid):
                    _write(file, {"at": time.monotonic(), "memory": memory_of(pid)})
                    time.sleep(MEMORY_S)
            finally:
                other.terminate()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if sys.argv[1:]:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    else:
        control()
