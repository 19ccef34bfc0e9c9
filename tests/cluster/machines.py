"""`Machines`: namespaces of this machine as machines of a cluster, each with a Ray of its own. Needs root."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from slime_events.core.run.own_python import ROOT
from tests.cluster.plan import (
    HUB_HOST,
    RAY_PORT,
    STORE_PORT,
    SUBNET,
    Listening,
    Machine,
    hub_commands,
    hub_name,
    parse_listening,
    removal_commands,
)

WAIT_S = 60.0
STORE_BYTES = 80 << 20
RAY_TRIES = 3
"""Starts of Ray on a machine: on busy cores, one can miss Ray's own time limits."""
INIT = (
    "hostname {name} && mount --make-rprivate / && mount -t tmpfs tmpfs {private} && mount -t tmpfs tmpfs /dev/shm && "
    "{more} touch {ready} && while :; do sleep 1000 & wait; done"
)
"""First process of a machine: it reaps the others, which end with it. Its folder for temporary files is its own."""


class Machines:
    """Machines 1 to `count`, which see the same folder `shared`. A context manager: it removes all that it has made."""

    def __init__(self, count: int = 3) -> None:
        self.cluster = f"slime{os.getpid()}"
        self.machines = [Machine(self.cluster, number) for number in range(1, count + 1)]
        self._inits: dict[int, psutil.Process] = {}
        self._holders: list[subprocess.Popen[bytes]] = []
        self._running: list[subprocess.Popen[bytes]] = []
        self._names: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="sc-", dir="/tmp"))  # short: Ray's sockets have 107 characters
        self.shared, self._private = self.folder / "shared", self.folder / "own"

    def __enter__(self) -> Machines:
        try:
            for folder in (self.shared, self._private):
                folder.mkdir()
            self._names.append(hub_name(self.cluster))
            for command in hub_commands(self.cluster):
                _call(command)
            for machine in self.machines:
                self.start(machine.number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._inits):
            self.kill(number)
        for process in [*self._running, *self._holders]:
            process.kill()
            process.wait()
        for command in removal_commands(self._names):
            with contextlib.suppress(subprocess.CalledProcessError):
                _call(command)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, number: int, *, unshared: bool = False) -> None:
        """Make a machine, without Ray. unshared: it sees an empty folder of its own instead of `shared`."""
        machine, ready = self.machines[number - 1], self.folder / f"ready-{number}"
        if machine.name not in self._names:
            self._names.append(machine.name)
            for command in machine.commands():
                _call(command)
        ready.unlink(missing_ok=True)
        more = f"mount -t tmpfs tmpfs {self.shared} &&" if unshared else ""
        script = INIT.format(name=machine.name, private=self._private, more=more, ready=ready)
        inner = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", script]
        holder = subprocess.Popen(["ip", "netns", "exec", machine.name, *inner], stderr=subprocess.DEVNULL)
        self._holders.append(holder)
        wait_for(ready.exists, f"machine {number}")
        (self._inits[number],) = psutil.Process(holder.pid).children()

    def kill(self, number: int) -> None:
        """End all processes of a machine at once, as a loss of power does. Its files and its network stay."""
        init = self._inits.pop(number)
        with contextlib.suppress(psutil.NoSuchProcess):
            init.send_signal(signal.SIGKILL)
            init.wait(WAIT_S)

    def processes(self, number: int) -> list[str]:
        """Return the command lines of a machine's processes."""
        own = _pid_namespace(self._inits[number].pid)
        lines = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # it has just ended
                if _pid_namespace(process.pid) == own:
                    lines.append(" ".join(process.cmdline()))
        return lines

    def command(self, number: int, words: Sequence[str]) -> list[str]:
        """Return the command that runs a program on a machine."""
        return ["nsenter", "--target", str(self._inits[number].pid), "--uts", "--mount", "--net", "--pid", *words]

    def call(self, number: int, words: Sequence[str], timeout_s: float = WAIT_S) -> str:
        """Run a program on a machine, and return what it prints. Raises CalledProcessError."""
        done = subprocess.run(
            self.command(number, words),
            env=self.environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=timeout_s,
        )
        return done.stdout

    def begin(self, number: int, words: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
        """Start a program on a machine, whose output goes to a file."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                self.command(number, words), env=self.environment(), stdout=file, stderr=subprocess.STDOUT
            )
        self._running.append(process)
        return process

    def environment(self, more: Mapping[str, str] = {}) -> dict[str, str]:  # is only read
        """Return the variables of programs on the machines: a token of Ray, and folders of their own."""
        own = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self._private), "HOME": str(self._private)}
        own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.cluster.ljust(32, "x"), "OMP_NUM_THREADS": "1"}
        own |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
        own |= {"AWS_ENDPOINT_URL": f"http://{SUBNET}.{HUB_HOST}:{STORE_PORT}"}
        own |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0"}
        return os.environ | own | dict(more)

    def start_ray(self, number: int) -> None:
        """Start Ray on a machine: the head on machine 1."""
        address = self.machines[number - 1].address
        first = ["--head", f"--port={RAY_PORT}", f"--temp-dir={self._private}/ray", "--include-dashboard=false"]
        later = [f"--address={self.ray_address}"]
        # Only the launcher has the keys of the store.
        words = ["env", *(f"-u{name}" for name in os.environ | self.environment() if name.startswith("AWS_"))]
        words += [_ray(), "start", f"--node-ip-address={address}", "--num-cpus=2", "--disable-usage-stats"]
        words += [f"--object-store-memory={STORE_BYTES}", *(first if number == 1 else later)]
        for tries in range(RAY_TRIES):
            try:
                self.call(number, words, timeout_s=120)
                return
            except subprocess.CalledProcessError as error:
                if tries == RAY_TRIES - 1:
                    output = error.stdout + error.stderr
                    raise RuntimeError(f"Ray did not start on machine {number}: {output}") from error

    def kill_all(self) -> None:
        """End all machines at once."""
        for number in list(self._inits):
            self.kill(number)

    def start_all(self) -> None:
        """Start all machines and their Rays."""
        for machine in self.machines:
            self.start(machine.number)
        self.start_rays()

    def start_rays(self) -> None:
        """Start Ray on all machines: the head, then the others at once."""
        self.start_ray(1)
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.start_ray, range(2, len(self.machines) + 1)))

    @property
    def ray_address(self) -> str:
        return f"{self.machines[0].address}:{RAY_PORT}"

    def start_store(self, bucket: str) -> None:
        """Start an S3 server at the bridge, with an empty bucket. It keeps objects in memory."""
        host, port = f"{SUBNET}.{HUB_HOST}", str(STORE_PORT)
        server = [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
        command = ["ip", "netns", "exec", hub_name(self.cluster), *server]
        output = subprocess.DEVNULL
        self._running.append(subprocess.Popen(command, env=self.environment(), stdout=output, stderr=output))
        make = f"import s3fs; s3fs.S3FileSystem().mkdir({bucket!r})"
        wait_for(partial(self._answers, host, port), "the S3 server")
        self.call(1, [sys.executable, "-c", make])

    def _answers(self, host: str, port: str) -> bool:
        dial = f"import socket; socket.create_connection(({host!r}, {port}), 1)"
        try:
            self.call(1, [sys.executable, "-S", "-c", dial])
        except subprocess.CalledProcessError:
            return False
        return True

    def listening(self, number: int) -> list[Listening]:
        """Return the listening sockets of a machine, with the command lines of their processes."""
        sockets = parse_listening(self.call(number, ["ss", "-ltnpH"]))
        return [replace(socket, process=self._command_line(number, socket) or socket.process) for socket in sockets]

    def _command_line(self, number: int, socket: Listening) -> str:
        with contextlib.suppress(subprocess.CalledProcessError):  # it has just ended
            return self.call(number, ["cat", f"/proc/{socket.pid}/cmdline"]).replace("\0", " ").strip()
        return ""


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until `condition` holds. Raises TimeoutError, which names `what`."""
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.05)


def _pid_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")


def _ray() -> str:
    return str(Path(sys.executable).with_name("ray"))


def _call(command: str) -> None:
    subprocess.run(shlex.split(command), check=True, capture_output=True)
